"""Text while it arrives equals the text of the whole; stop strings are found however they are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from truedraft.backends.detokenize import Detokenizer, StopStrings


def decode_bytes(ids) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


@given(st.text(max_size=40))
def test_pieces_add_up_to_the_text(text):
    detokenizer = Detokenizer(decode_bytes)
    pieces = [detokenizer.push(byte) for byte in text.encode()]
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text
    assert "".join(pieces) + detokenizer.flush() == text


@given(st.lists(st.sampled_from([*b"ab\xff\x80\xe2\x82\xac\xf0\x9f\xa6\x9c"]), max_size=90))
def test_broken_bytes_lose_nothing(data):
    detokenizer = Detokenizer(decode_bytes)
    pieces = "".join(detokenizer.push(byte) for byte in data) + detokenizer.flush()
    assert pieces == decode_bytes(data)


def test_broken_bytes_do_not_pile_up():
    longest = 0

    def decode(ids) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode_bytes(ids)

    detokenizer = Detokenizer(decode)
    pieces = [detokenizer.push(0x80) for _ in range(500)]
    assert len("".join(pieces)) > 480
    assert longest < 40


def cut(text: str, lens: list[int]) -> list[str]:
    pieces, at = [], 0
    for length in lens:
        pieces.append(text[at : at + length])
        at += length
    return [*pieces, text[at:]]


@given(
    text=st.text(alphabet="ab\n", max_size=30),
    stops=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), min_size=1, max_size=3),
    lens=st.lists(st.integers(0, 5), max_size=10),
    keep=st.booleans(),
)
def test_stop_strings_do_not_depend_on_the_cuts(text, stops, lens, keep):
    matcher = StopStrings(stops, keep=keep)
    out, ended = "", None
    for piece in cut(text, lens):
        for char in piece:  # tokens arrive in pieces, but the first end is what counts
            given_out, ended = matcher.push(char)
            out += given_out
            if ended is not None:
                break
        if ended is not None:
            break
    else:
        out += matcher.flush()
    ends = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in stops if stop in text]
    if not ends:
        assert ended is None
        assert out == text
        return
    end = min(ends)[0]
    assert ended is not None
    assert text[:end].endswith(ended)
    assert out == (text[:end] if keep else text[: end - len(ended)])


def test_text_that_may_begin_a_stop_string_is_held_back():
    matcher = StopStrings(["END"], keep=False)
    assert matcher.push("abcE") == ("abc", None)
    assert matcher.push("N") == ("", None)
    assert matcher.push("x") == ("ENx", None)
    assert matcher.push("END!") == ("", "END")
