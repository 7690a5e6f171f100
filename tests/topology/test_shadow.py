import pickle
import sys
from pathlib import Path

import pytest

from topology import shadow

CHECKOUT = Path(shadow.__file__).parents[1]
OWN = {room: f"/site/{room}" for room in shadow.ROOMS}


@pytest.mark.parametrize("room", shadow.ROOMS)
@pytest.mark.parametrize("shape", ["{room}.py", "{room}/__init__.py"])
def test_a_foreign_room_is_named_with_what_to_do(tmp_path, room, shape):
    foreign = tmp_path / shape.format(room=room)
    foreign.parent.mkdir(exist_ok=True)
    foreign.touch()
    (complaint,) = shadow.in_directory(str(tmp_path))
    assert f"shadows machworks' own package '{room}'" in complaint
    assert str(tmp_path / room) in complaint
    assert "rename it" in complaint


def test_all_foreign_rooms_are_named_at_once(tmp_path):
    for room in shadow.ROOMS:
        (tmp_path / f"{room}.py").touch()
    assert len(shadow.in_directory(str(tmp_path))) == len(shadow.ROOMS)


def test_a_plain_folder_is_refused_only_where_it_wins(tmp_path, monkeypatch):
    (tmp_path / "learners").mkdir()
    monkeypatch.setattr(sys, "path", [str(CHECKOUT)])
    assert shadow.in_directory(str(tmp_path)) == []  # a package with an __init__ further down the path goes first
    monkeypatch.setattr(sys, "path", [])
    assert len(shadow.in_directory(str(tmp_path))) == 1  # but an editable install is asked after all folders


def test_the_projects_own_checkout_passes_also_through_a_link(tmp_path):
    assert shadow.in_directory(str(CHECKOUT)) == []
    link = tmp_path / "link"
    link.symlink_to(CHECKOUT)
    assert shadow.in_directory(str(link)) == []


def test_other_names_do_not_matter(tmp_path):
    (tmp_path / "mylearners.py").touch()
    (tmp_path / "models").mkdir()
    assert shadow.in_directory(str(tmp_path)) == []


def test_a_host_may_have_its_installation_elsewhere_but_not_a_foreign_room():
    good = {room: (f"/opt/env/{room}", f"/opt/env/{room}") for room in shadow.ROOMS}
    assert shadow.complaints(good, OWN, host="two") == []
    (complaint,) = shadow.complaints(
        {**good, "analysis": ("/home/me/analysis.py", "/opt/env/analysis")}, OWN, host="two"
    )
    assert complaint.startswith("host two: /home/me/analysis.py shadows")


def test_a_host_without_machworks_is_named():
    bare = dict.fromkeys(shadow.ROOMS, (None, None))
    said = shadow.complaints(bare, OWN, host="two")
    assert len(said) == len(shadow.ROOMS)
    assert all(line.startswith("host two: ") and "install the same machworks" in line for line in said)


def test_the_surveyor_finds_the_rooms_of_this_process_and_cannot_travel_by_name():
    survey = shadow.surveyor()
    places = {room: place for room, (place, _) in survey(shadow.ROOMS).items()}
    assert places == {room: str(CHECKOUT / room) for room in shadow.ROOMS}
    assert survey.__annotations__ == {} and survey.__closure__ is None
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(survey)
