"""Grammars: masks along drafts equal masks of going token by token, and nothing is left behind."""

import json
import time

import numpy as np
import pytest
from bpe_tokenizer import END, PAD, bpe_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from truedraft.contract.request import Grammar
from truedraft.engine.grammar import MAX_SOURCE_LEN, GrammarCompiler, GrammarConstraint
from truedraft.errors import BackendError, ConfigError, RequestError

VOCAB = 450  # wider than the tokenizer, as padded heads are
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["maths", "engines"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
GRAMMARS = [
    Grammar("json_schema", json.dumps(SCHEMA)),
    Grammar("json_object"),
    Grammar("regex", r"(yes|no)(, (yes|no)){0,5}"),
    Grammar("choice", json.dumps(["yes", "yes, the answer", 'a "quoted" \\ line\n', "naïve"])),
    Grammar("lark", 'start: "the answer is " word\nword: /[a-z]{1,8}/'),
]
FITTING = ['{"name": "Ada", "age": 36}', '{"name": "Ada"}', "yes, no, yes", "naïve", "the answer is maybe"]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(bpe_tokenizer().to_str(), vocab_size=VOCAB, eos_ids=[END])


def _allowed(mask: np.ndarray) -> set[int]:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(bits.nonzero()[0].tolist())


def _encode(text: str) -> list[int]:
    return list(bpe_tokenizer().encode(text).ids)


def _walk(constraint: GrammarConstraint, seed: int, length: int) -> list[int]:
    """A random text of the grammar, as tokens, ending where it ends."""
    rng = np.random.default_rng(seed)
    ids: list[int] = []
    while len(ids) < length:
        token = int(rng.choice(sorted(_allowed(constraint.masks(())[0]))))
        ids.append(token)
        constraint.commit((token,))
        if token == END:
            break
    return ids


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(GRAMMARS), st.integers(0, 10**6), st.integers(0, 12), st.data())
def test_masks_along_drafts_equal_token_by_token(
    compiler: GrammarCompiler, grammar: Grammar, seed: int, num_committed: int, data: st.DataObject
) -> None:
    walk = _walk(compiler.compile(grammar), seed, 24)
    committed, draft = walk[:num_committed], walk[num_committed : num_committed + 8]
    if draft and data.draw(st.booleans()):  # spoil one drafted token
        draft[data.draw(st.integers(0, len(draft) - 1))] = data.draw(st.integers(0, VOCAB - 1))
    constraint = compiler.compile(grammar)
    constraint.commit(committed)
    before = constraint.masks(())
    masks = constraint.masks(draft)
    assert masks.shape == (1 + len(draft), (VOCAB + 31) // 32)
    assert masks.dtype == np.int32

    stepped = compiler.compile(grammar)
    stepped.commit(committed)
    for row in range(1 + len(draft)):
        assert _allowed(masks[row]) == _allowed(stepped.masks(())[0])
        if row < len(draft) and draft[row] not in _allowed(masks[row]):
            # Rows that cannot be kept: anything goes, but after an end only ends.
            if END not in draft[:row]:
                assert (masks[row + 1 :] == -1).all()
            break
        stepped.commit(draft[row : row + 1])
    np.testing.assert_array_equal(constraint.masks(()), before)  # left where it was
    np.testing.assert_array_equal(constraint.masks(draft), masks)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind)
def test_random_walks_give_texts_of_the_grammar(compiler: GrammarCompiler, grammar: Grammar) -> None:
    num_ended = 0
    for seed in range(30):
        walk = _walk(compiler.compile(grammar), seed, 80)
        if walk[-1] != END:
            continue
        num_ended += 1
        text = bpe_tokenizer().decode(walk[:-1])
        if grammar.kind in ("json_schema", "json_object"):
            assert isinstance(json.loads(text), dict)
        elif grammar.kind == "choice":
            assert text in json.loads(grammar.source)
    assert num_ended or grammar.kind == "json_object"


def test_fitting_texts_pass_and_end(compiler: GrammarCompiler) -> None:
    for grammar, text in zip(GRAMMARS, FITTING, strict=True):
        if grammar.kind == "json_schema":
            assert json.loads(text).keys() >= {"name", "age"}
        constraint = compiler.compile(grammar)
        ids = [*_encode(text), END]
        masks = constraint.masks(ids)
        for row, token in enumerate(ids):
            assert token in _allowed(masks[row]), (grammar.kind, text, row)
        assert _allowed(masks[-1]) == {END}
        constraint.commit(ids)
        assert constraint.is_stopped
        assert constraint.is_accepting
        assert _allowed(constraint.masks((5, 6))[2]) == {END}


def test_end_is_allowed_exactly_where_the_text_is_complete(compiler: GrammarCompiler) -> None:
    constraint = compiler.compile(Grammar("regex", "a{2,3}"))
    (a,) = _encode("a")
    masks = constraint.masks((a, a, a))
    ends = [END in _allowed(mask) for mask in masks]
    assert ends == [False, False, True, True]
    assert all(PAD not in _allowed(mask) and max(_allowed(mask)) < 400 for mask in masks)
    constraint.commit((a, a))
    assert constraint.is_accepting
    assert not constraint.is_stopped
    constraint.commit((a,))
    assert constraint.is_stopped


def test_a_token_that_does_not_fit_is_an_error_not_a_state(compiler: GrammarCompiler) -> None:
    constraint = compiler.compile(Grammar("regex", "a"))
    with pytest.raises(BackendError, match="does not fit"):
        constraint.commit(_encode("b"))


def test_two_sequences_of_one_grammar_are_apart(compiler: GrammarCompiler) -> None:
    first, second = (compiler.compile(GRAMMARS[2]) for _ in range(2))
    first.commit(_encode("yes"))
    assert END in _allowed(first.masks(())[0])
    assert END not in _allowed(second.masks(())[0])


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar("regex", "("), "unclosed group"),
        (Grammar("regex", "(?=a)b"), "look-around"),
        (Grammar("json_schema", "{bad"), "not JSON"),
        (Grammar("json_schema", "[1]"), "not an object"),
        (Grammar("json_schema", '{"type": "bogus"}'), "Invalid type: bogus"),
        (Grammar("json_schema", '{"$ref": "http://nowhere.invalid/x"}'), "nowhere"),
        (Grammar("json_schema", '{"$ref": "#"}'), "no text fits"),
        (Grammar("json_schema", '{"a":' * 20_000), "not JSON"),
        (Grammar("json_schema", '{"properties":{"a":' * 300 + "{}" + "}}" * 300), "recursion"),
        (Grammar("choice", "[]"), "one or more"),
        (Grammar("choice", '["a", 1]'), "non-empty strings"),
        (Grammar("lark", "foo"), "Expected"),
        (Grammar("regex", "a" * (MAX_SOURCE_LEN + 1)), "too long"),
        # Its first mask can be had, and no other one.
        (Grammar("regex", "a{1000000}"), "too many expressions"),
    ],
    ids=lambda value: None if isinstance(value, Grammar) else str(value),
)
def test_bad_grammars_name_the_field(compiler: GrammarCompiler, grammar: Grammar, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        compiler.compile(grammar)
    assert caught.value.param == f"grammar.{grammar.kind}"
    assert "<state>" not in str(caught.value)
    assert len(str(caught.value)) < 800


HOSTILE = {
    "properties": {"type": "object", "properties": {f"k{i}": {} for i in range(8000)}},
    "all_of": {
        "allOf": [{"anyOf": [{"properties": {f"a{i}": {"const": j}}} for j in range(8)]} for i in range(8)]
    },
    "lengths": {"type": "string", "minLength": 10**5, "maxLength": 10**6},
    "items": {"type": "array", "minItems": 10**5, "items": {"type": "integer"}},
    "pattern": {"type": "string", "pattern": "^(a|b|ab)*[ab]{400}$"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_cannot_hang(compiler: GrammarCompiler, name: str) -> None:
    begin = time.monotonic()
    source = json.dumps(HOSTILE[name], separators=(",", ":"))
    try:
        constraint = compiler.compile(Grammar("json_schema", source))
        constraint.masks(_encode('{"k1": "abab"}'))
    except (RequestError, BackendError):
        pass
    assert time.monotonic() - begin < 20  # seconds on a busy machine; minutes where a limit is lost


def test_a_grammar_that_outgrows_its_limits_says_so(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The probe at compile time sees this one; others outgrow their limits later.
    monkeypatch.setattr(GrammarConstraint, "probe", lambda self, param: None)
    constraint = compiler.compile(Grammar("regex", "((a{1,1000}){1,1000}){1000}"))
    with pytest.raises(BackendError, match="too many"):
        constraint.masks(_encode("a") * 3)


def test_the_cache_is_bounded_and_keeps_the_latest() -> None:
    compiler = GrammarCompiler(bpe_tokenizer().to_str(), vocab_size=VOCAB, eos_ids=[END], cache_len=2)
    for source in ("a", "b", "a", "c"):
        compiler.compile(Grammar("regex", source))
    assert [source for _, source in compiler._compiled] == ["a", "c"]


def test_a_tokenizer_that_cannot_be_read() -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        GrammarCompiler("{}", vocab_size=VOCAB, eos_ids=[END])
    with pytest.raises(ConfigError, match="end-of-sequence"):
        GrammarCompiler(bpe_tokenizer().to_str(), vocab_size=VOCAB, eos_ids=[])
    with pytest.raises(ConfigError, match="tokenizer"):
        GrammarCompiler(bpe_tokenizer().to_str(), vocab_size=100, eos_ids=[END])
