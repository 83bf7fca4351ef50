"""Constrains answers to a JSON schema, regular expression, choice or Lark grammar, by llguidance.

No torch here: masks are numpy bit masks, and the sampler moves them to the device. Speculation
stays on: a constraint gives one mask for every verified row, by reading the drafts and going back.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask
from numpy.typing import NDArray

from truedraft.contract.request import Grammar
from truedraft.errors import BackendError, ConfigError, RequestError

MAX_SOURCE_LEN = 128 * 1024
"""Longest grammar source taken, in characters."""

# llguidance gives up past its limits on size, lexer states and work a step; that becomes our error.
# Compile time can grow with the square of the size (a schema with thousands of optional properties):
# its own limit of 500,000 symbols would allow many seconds, this one about two.
_LIMITS = LLParserLimits(max_grammar_size=40_000, verbose_errors=False)

# A model that may write white space for ever sometimes does; pretty-printed JSON needs no more.
_JSON_OPTIONS = {"whitespace_pattern": r"[ \n\r\t]{0,40}"}
_CACHE_LEN = 64


class GrammarCompiler:
    """Compiles grammars for one tokenizer. Safe to call from several threads."""

    def __init__(
        self, tokenizer_json: str, *, vocab_size: int, eos_ids: Sequence[int], cache_len: int = _CACHE_LEN
    ) -> None:
        """`tokenizer_json`: a Hugging Face tokenizer.json's text, padding and truncation off.

        `vocab_size`: width of the target's logits; ids without a token there are never allowed.
        `eos_ids`: allowed exactly where the answer may end. Takes about a second for a large
        vocabulary. Raises ConfigError where llguidance cannot read the tokenizer.
        """
        self._eos_ids = tuple(sorted(set(eos_ids)))
        self._vocab_size = vocab_size
        if not self._eos_ids or not all(0 <= eos_id < vocab_size for eos_id in self._eos_ids):
            raise ConfigError(
                "Grammars need the end-of-sequence token",
                seen=list(eos_ids),
                allowed=f"one or more ids below {vocab_size}",
            )
        try:
            self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=list(self._eos_ids))
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"llguidance cannot read the tokenizer: {error}") from error
        self._cache_len = cache_len
        self._compiled: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar) -> GrammarConstraint:
        """→ a constraint at its start, one for each sequence.

        Raises RequestError naming the field, with llguidance's message, for a grammar that cannot
        be read or is too complex.
        """
        key = (grammar.kind, grammar.source)
        with self._lock:
            matcher = self._compiled.get(key)
            if matcher is not None:
                self._compiled.move_to_end(key)
        if matcher is None:
            matcher = self._build(grammar)
            with self._lock:
                self._compiled[key] = matcher
                while len(self._compiled) > self._cache_len:
                    self._compiled.popitem(last=False)
        return GrammarConstraint(matcher.deep_copy(), self._vocab_size, self._eos_ids)

    def _build(self, grammar: Grammar) -> LLMatcher:
        param = f"grammar.{grammar.kind}"
        if len(grammar.source) > MAX_SOURCE_LEN:
            raise RequestError(
                "The grammar is too long",
                param=param,
                seen=f"{len(grammar.source)} characters",
                allowed=f"up to {MAX_SOURCE_LEN}",
            )
        source = _to_llguidance(grammar, param)
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            # The first two masks build most of the lexer: what is too complex for it fails here.
            GrammarConstraint(matcher.deep_copy(), self._vocab_size, self._eos_ids).probe(param)
            return matcher
        raise _refusal(matcher, param)


class GrammarConstraint:
    """How far one sequence has come in its grammar: `contract.step.RowConstraint`, and `commit`."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, eos_ids: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._num_words = (vocab_size + 31) // 32
        self._eos_ids = frozenset(eos_ids)
        self._ended = False
        self._eos_mask = np.zeros(self._num_words, np.uint32)
        for eos_id in eos_ids:
            self._eos_mask[eos_id // 32] |= np.uint32(1 << eos_id % 32)

    @property
    def is_stopped(self) -> bool:
        """Whether the answer is complete: nothing but an end-of-sequence token may follow."""
        return self._ended or bool(self._matcher.is_stopped())

    @property
    def is_accepting(self) -> bool:
        """Whether the answer may end here."""
        return self._ended or bool(self._matcher.is_accepting())

    def masks(self, draft_ids: Sequence[int]) -> NDArray[np.int32]:
        """int32 bit masks [1 + len(draft_ids), ceil(vocab/32)], and leaves the state where it was.

        Row i allows what may follow the committed text and the first i drafts. After a draft that
        the grammar forbids there, all is allowed: the target cannot choose that draft, so those
        rows are never kept. After an end-of-sequence token only the same is allowed.
        Raises BackendError where the grammar has grown past llguidance's limits.
        """
        masks = np.full((1 + len(draft_ids), self._num_words), -1, np.int32)
        num_read = 0
        try:
            for row in range(len(masks)):
                if self._ended or (row and draft_ids[row - 1] in self._eos_ids):
                    masks[row:] = self._eos_mask.view(np.int32)
                    break
                self._fill(masks, row)
                if row == len(draft_ids) or not _allows(masks[row], draft_ids[row]):
                    break
                if draft_ids[row] not in self._eos_ids:
                    self._read(draft_ids[row])
                    num_read += 1
        finally:
            if num_read:
                self._matcher.rollback(num_read)
        return masks

    def commit(self, token_ids: Sequence[int]) -> None:
        """Moves on by tokens that are now part of the answer; an end-of-sequence token ends it."""
        for token_id in token_ids:
            if self._ended:
                return
            # llguidance does not count an end-of-sequence token that it did not wait for, which
            # would upset a rollback: it is not shown any.
            if token_id in self._eos_ids:
                self._ended = True
            else:
                self._read(token_id)

    def probe(self, param: str) -> None:
        """Raises RequestError for `param` where even the first two masks are beyond the limits."""
        try:
            words = self.masks(())[0].view(np.uint32)
            allowed = words & ~self._eos_mask
            if allowed.any():
                word = int(allowed.argmax())
                self.masks((32 * word + int(allowed[word]).bit_length() - 1,))
        except BackendError as error:
            raise _refusal(self._matcher, param) from error

    def _fill(self, masks: NDArray[np.int32], row: int) -> None:
        fill_next_token_bitmask(self._matcher, masks, row)
        if self._matcher.is_error():
            raise BackendError(f"The grammar's matcher failed: {_message(self._matcher)}")

    def _read(self, token_id: int) -> None:
        if not self._matcher.consume_token(token_id):
            raise BackendError(
                f"Token {token_id} does not fit the grammar: {_message(self._matcher) or 'it has ended'}"
            )


def _allows(mask: NDArray[np.int32], token_id: int) -> bool:
    if not 0 <= token_id < 32 * len(mask):
        return False
    return bool(int(mask[token_id // 32]) >> token_id % 32 & 1)


def _to_llguidance(grammar: Grammar, param: str) -> str:
    """→ llguidance's own form of the grammar. It is checked for sense only when it is compiled."""
    if grammar.kind == "regex":
        return str(LLMatcher.grammar_from_regex(grammar.source))
    if grammar.kind == "lark":
        return str(LLMatcher.grammar_from_lark(grammar.source))
    if grammar.kind == "choice":
        choices = _parse_json(grammar.source, param)
        if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
            raise RequestError(
                "The choices cannot be used",
                param=param,
                seen=grammar.source,
                allowed="a list of one or more non-empty strings",
            )
        return str(LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(c) for c in choices)))
    schema = {"type": "object"} if grammar.kind == "json_object" else _parse_json(grammar.source, param)
    if not isinstance(schema, dict):
        raise RequestError(
            "The JSON schema is not an object", param=param, seen=grammar.source, allowed="a JSON object"
        )
    try:
        return str(LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=_JSON_OPTIONS))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The JSON schema cannot be used: {error}", param=param) from error


def _parse_json(source: str, param: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"This is not JSON: {error}", param=param, seen=source) from error


def _refusal(matcher: LLMatcher, param: str) -> RequestError:
    return RequestError(f"The grammar cannot be used: {_message(matcher)}", param=param)


def _message(matcher: LLMatcher) -> str:
    """llguidance's message without the dump of its state, on one line."""
    text = str(matcher.get_error()).split("<state>", 1)[0].split("<grammar>", 1)[0]
    line = " ".join(text.replace("<non-verbose/>", "").split())[:500]
    return "no text fits it" if line.startswith("NoExtension") else line
