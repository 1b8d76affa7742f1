from bo_scale.loop.history.ledger import Entry, Ledger


def test_entries_are_in_order_with_what_became_of_them() -> None:
    ledger = Ledger(2)
    ledger.asked([7, 8, 9], [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    ledger.told([8, None], [[2.0, 3.0], [6.0, 7.0]], first=10)
    ledger.abandoned([7])
    assert list(ledger.entries()) == [
        Entry((0.0, 1.0), "abandoned", -1),
        Entry((2.0, 3.0), "told", 10),
        Entry((4.0, 5.0), "pending", -1),
        Entry((6.0, 7.0), "told", 11),
    ]
    assert ledger.numbers() == [None, None, 9, None]
    assert ledger.pending(9) == (4.0, 5.0)


def test_abandoned_points_are_recalled_under_a_new_number_and_may_be_told() -> None:
    ledger = Ledger(1)
    ledger.asked([0], [[0.5]])
    ledger.abandoned([0])
    ledger.recalled([0], [4])
    assert ledger.numbers() == [4]
    ledger.told([4], [[0.5]], first=0)
    assert list(ledger.entries()) == [Entry((0.5,), "told", 0)]
