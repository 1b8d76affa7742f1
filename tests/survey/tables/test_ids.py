from bo_scale.survey.tables.ids import KnownId, KnownIds, known_ids


def found(ids: KnownIds, text: str) -> str:
    one = ids.find(text)
    return one.site if isinstance(one, KnownId) else f"refused: {one}"


def test_ids_are_known_however_a_spreadsheet_writes_them() -> None:
    ids = known_ids([("P1", "", True, 1.0, 2.0)], [("007", 3.0, 4.0), ("Mast  A", 5.0, 6.0), ("", 0.0, 0.0)])
    assert [found(ids, text) for text in ("P1", "p1", "7", "7.0", "0007", "mast a")] == [
        "P1", "P1", "007", "007", "007", "Mast  A",
    ]  # fmt: skip
    assert found(ids, "P11") == "refused: there is no site P11; did you mean P1?"
    assert found(ids, "8") == "refused: there is no site 8"


def test_zeros_within_ids_do_not_matter_where_one_alone_remains() -> None:
    ids = known_ids([], [(site, 1.0, 2.0) for site in ("W007", "A-01", "A-1", "B1.05", "C05", "C005", "Mast 10")])
    assert [found(ids, text) for text in ("w7", "W07", "a-1", "A-01", "mast 010")] == [
        "W007", "W007", "A-1", "A-01", "Mast 10",
    ]  # fmt: skip
    assert found(ids, "B1.5") == "refused: there is no site B1.5; did you mean B1.05?"
    assert found(ids, "C5") == "refused: C5 may be any of these sites: C005, C05; write it as text"
    assert found(ids, "A-001") == "refused: A-001 may be any of these sites: A-01, A-1; write it as text"
    assert found(ids, "W70") == "refused: there is no site W70"


def test_ids_of_plans_that_are_forgotten_need_coordinates() -> None:
    ids = known_ids([], [("PX1", 1.0, 2.0)])
    told = "the survey has no plan (init --overwrite forgets plans); send the row with its coordinates"
    assert found(ids, "P1") == f"refused: there is no site P1: {told}"
    assert found(ids, "PX2") == "refused: there is no site PX2; did you mean PX1?"


def test_ids_that_may_be_two_are_refused() -> None:
    ids = known_ids([], [("7", 1.0, 2.0), ("007", 3.0, 4.0), ("a", 1.0, 1.0), ("A", 2.0, 2.0)])
    assert found(ids, "7") == "refused: 7 may be any of these sites: 007, 7; write it as text"
    assert found(ids, "007") == "007"
    assert (found(ids, "a"), found(ids, "A")) == ("a", "A")
    many = known_ids([], [("mast", 1.0, 2.0), ("mast", 3.0, 4.0)])
    assert found(many, "mast") == "refused: site mast was measured at 2 places; give coordinates"


def test_names_lead_to_the_site_that_is_to_be_measured() -> None:
    planned = [("P1", "well 3", False, 1.0, 2.0), ("P2", "well 3", True, 1.0, 2.0), ("P3", "well 4", False, 3.0, 4.0)]
    ids = known_ids(planned, [("P1", 1.1, 2.1), ("well 4", 9.0, 9.0)])
    assert [found(ids, text) for text in ("P1", "well 3", "well 4")] == ["P1", "P2", "well 4"]
    twice = known_ids([(f"P{k}", "well", True, 1.0, 2.0) for k in (1, 2)], [])
    assert found(twice, "well") == "refused: well is the name of several planned sites: P1, P2; write the id"
