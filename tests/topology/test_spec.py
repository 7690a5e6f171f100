import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology import parse, spec

#: a key of two letters of which one is wrong is not recognised: all that are known are listed
KEYS = [(level, key) for level in spec.levels() for key in level.keys if len(key) > 2]
ELSEWHERE = {key for level in spec.levels() for key in level.keys} | set(spec.WORDS)


@st.composite
def misspelt(draw: st.DrawFn) -> tuple[spec.Level, str, str]:
    """A level of the file, one of its keys, and that key with one letter added, dropped or changed."""
    level, key = draw(st.sampled_from(KEYS))
    at = draw(st.integers(0, len(key) - 1))
    letter = draw(st.sampled_from(string.ascii_lowercase + "_"))
    wrong = draw(
        st.sampled_from([key[:at] + letter + key[at:], key[:at] + key[at + 1 :], key[:at] + letter + key[at + 1 :]])
    )
    return level, key, wrong


@settings(max_examples=400, deadline=None)
@given(misspelt())
def test_one_wrong_letter_in_any_key_is_refused_with_the_key(case: tuple[spec.Level, str, str]) -> None:
    level, key, wrong = case
    if wrong in ELSEWHERE or not wrong.strip("_"):
        return
    path = ["top" if part == "*" else part for part in level.path]
    inner = f"{wrong}: 1"
    for part in reversed(path[2:] if level.kind else path):
        inner = f"{part}: {{{inner}}}"
    if level.kind:
        text = f"version: 1\nname: x\nlearners:\n  top: {{kind: {level.kind}, {inner}}}\n"
    else:
        text = f"version: 1\nname: x\nlearners: {{top: {{kind: mach}}}}\n{inner}\n"
    with pytest.raises(parse.Problems) as caught:
        parse.loads(text)
    (found,) = (one for one in caught.value.problems if "it is missing" not in one.message)
    assert (found.line, found.path) == (4, ".".join((*path, wrong)))
    assert f"'{key}'" in found.message.split("did you mean")[-1], found


def test_every_one_letter_edit_of_every_key_is_understood() -> None:
    """All of them, at the level of the hint, where that costs little: dropped and doubled letters."""
    for level, key in KEYS:
        path = tuple("top" if part == "*" else part for part in level.path)
        for at in range(len(key)):
            for wrong in (key[:at] + key[at + 1 :], key[:at] + key[at] + key[at:], key[:at] + "q" + key[at + 1 :]):
                if wrong not in ELSEWHERE:
                    assert f"'{key}'" in spec.meant(wrong, path, level.keys, level.kind)[0], (level, key, wrong)


def test_words_lead_to_keys_that_exist() -> None:
    known = {key for level in spec.levels() for key in level.keys}
    assert set(spec.WORDS.values()) <= known


def test_hyphens_capitals_and_run_together_words_are_recognised_alone() -> None:
    for level, key in KEYS:
        path = tuple("top" if part == "*" else part for part in level.path)
        for other in {key.replace("_", "-"), key.replace("_", ""), key.replace("_", " "), key.title(), key.upper()}:
            if other not in ELSEWHERE:
                assert spec.meant(other, path, level.keys, level.kind) == (
                    f"did you mean '{key}'?",
                    (".".join((*path, key)),),
                )
