"""The manual of options is what the types say, and the page in docs/ is the manual."""

from pathlib import Path

import pytest

from topology import manual, parse
from topology.spec import levels

PAGE = Path(__file__).parents[2] / "docs" / "options.md"
BASES = ("rbd", "fpd", "nes", "sgd", "local")


def test_the_page_is_the_manual() -> None:
    assert PAGE.read_text() == manual.markdown(), "write it anew: machworks options --md > docs/options.md"


def test_every_key_that_a_file_may_hold_is_in_it_with_the_kinds_that_take_it() -> None:
    found = {(one.key, kind) for one in manual.options() for kind in one.kinds or ("",)}
    wanted = set()
    for path, keys, kind in levels():
        inside = path[2:] if path[:1] == ("learners",) else path
        if inside[:1] != ("defaults",):
            wanted |= {(".".join((*inside, key)), kind) for key in keys if key != "kind"}
    mappings = {(key.rpartition(".")[0], kind) for key, kind in wanted}  # what is in them says it all
    assert found <= wanted and {key for key, _ in wanted - found} <= {key for key, _ in mappings}


OPTIONAL = ("basis.learn.", "basis.compartments.")  # not there unless something of them is given
GIVEN = [one for one in manual.options() if one.default not in ("required", "-") and not one.key.startswith(OPTIONAL)]


@pytest.mark.parametrize("one", GIVEN, ids=lambda one: f"{one.key} {','.join(one.kinds)}")
def test_a_default_that_is_given_changes_nothing(one: manual.Option) -> None:
    for kind in one.kinds or ("mach",):
        plain = f"{{version: 1, name: x, learners: {{a: {{kind: {kind}}}}}}}"
        path = f"learners.a.{one.key}" if one.kinds else one.key
        assert parse.loads(plain, overrides=[f"{path}={one.default}"]) == parse.loads(plain)


def test_values_defaults_and_meanings_are_words() -> None:
    by_key = {(one.key, one.kinds): one for one in manual.options()}
    residual = by_key["exchange.residual", ("rbd", "fpd", "nes", "local")]
    assert (
        residual.value == "one of leaky, local, none"
        and residual.default == "-"
        and "Default for rbd" in residual.meaning
    )
    assert by_key["exchange.mode", BASES].default == "async" and by_key["hidden", ("mach",)].default == "[512, 512]"
    assert by_key["name", ()].default == "required"
    assert all(one.meaning for one in manual.options() if one.key != "version")
