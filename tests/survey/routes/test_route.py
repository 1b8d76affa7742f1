from pictures import routed


def test_a_route_says_what_it_is() -> None:
    first, second = routed().routes

    assert (first.name, first.cost) == ("Day 1, team 1", "29.8 km, 3.5 h")
    assert (second.name, second.cost) == ("Day 1, team 2", "21.0 km")
