import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology import parse, spec

KEYS = [(level, keys, key) for level, keys in spec.levels() for key in keys]
ELSEWHERE = {key for _, keys in spec.levels() for key in keys} | set(spec.WORDS)


@st.composite
def misspelt(draw: st.DrawFn) -> tuple[tuple[str, ...], str, str]:
    """A level of the file, one of its keys, and that key with one letter added, dropped or changed."""
    level, _keys, key = draw(st.sampled_from(KEYS))
    at = draw(st.integers(0, len(key) - 1))
    letter = draw(st.sampled_from(string.ascii_lowercase + "_"))
    wrong = draw(
        st.sampled_from([key[:at] + letter + key[at:], key[:at] + key[at + 1 :], key[:at] + letter + key[at + 1 :]])
    )
    return level, key, wrong


@settings(max_examples=400, deadline=None)
@given(misspelt())
def test_one_wrong_letter_in_any_key_is_refused_with_the_key(case: tuple[tuple[str, ...], str, str]) -> None:
    level, key, wrong = case
    if wrong in ELSEWHERE or not wrong.strip("_"):
        return
    path = ["top" if part == "*" else part for part in level]
    inner = f"{{{wrong}: 1}}"
    if level == ():
        text = f"version: 1\nname: x\nlearners: {{top: {{kind: mach}}}}\n{wrong}: 1\n"
    elif level[0] == "learners":
        own = f"{wrong}: 1" if len(level) == 2 else f"{level[2]}: {inner}"
        text = f"version: 1\nname: x\nlearners:\n  top: {{kind: mach, {own}}}\n"
    else:
        for part in reversed(path[1:]):
            inner = f"{{{part}: {inner}}}"
        text = f"version: 1\nname: x\nlearners: {{top: {{kind: mach}}}}\n{path[0]}: {inner}\n"
    with pytest.raises(parse.Problems) as caught:
        parse.loads(text)
    (found,) = caught.value.problems
    assert (found.line, found.path) == (4, ".".join((*path, wrong)))
    assert f"'{key}'" in found.message.split("did you mean")[-1], found


def test_every_one_letter_edit_of_every_key_is_understood() -> None:
    """All of them, at the level of the hint, where that costs little: dropped and doubled letters."""
    for level, keys, key in KEYS:
        path = tuple("top" if part == "*" else part for part in level)
        for at in range(len(key)):
            for wrong in (key[:at] + key[at + 1 :], key[:at] + key[at] + key[at:], key[:at] + "q" + key[at + 1 :]):
                if wrong not in ELSEWHERE:
                    assert f"'{key}'" in spec.meant(wrong, path, keys), (level, key, wrong)


def test_words_lead_to_keys_that_exist() -> None:
    known = {key for _, keys in spec.levels() for key in keys}
    assert set(spec.WORDS.values()) <= known
    assert not set(spec.WORDS) & known


def test_hyphens_capitals_and_run_together_words_are_recognised_alone() -> None:
    for level, keys, key in KEYS:
        path = tuple("top" if part == "*" else part for part in level)
        for other in {key.replace("_", "-"), key.replace("_", ""), key.replace("_", " "), key.title(), key.upper()}:
            if other not in ELSEWHERE:
                assert spec.meant(other, path, keys) == f"did you mean '{key}'?"
