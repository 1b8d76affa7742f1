import numpy as np

from bo_scale.survey.output.labels import label_places


def test_labels_keep_off_markers_other_labels_and_lines_if_they_can() -> None:
    one, none = np.array([[50.0, 50.0]]), np.zeros((0, 2))
    along = np.array([[0.0, 50.0], [100.0, 50.0]])
    right = [56.0, 47.0]

    np.testing.assert_array_equal(label_places(one, ["P1"], none)[0], right)
    assert label_places(one, ["P1"], np.array([[60.0, 50.0]]))[0].tolist() == [50 - 6 - 12.4, 47]
    assert label_places(one, ["P1"], none, [along])[0].tolist() == [56, 55]
    everywhere = [along + np.array([0, up]) for up in range(-60, 60, 5)]
    np.testing.assert_array_equal(label_places(one, ["P1"], none, everywhere)[0], right)
    crowd = np.random.default_rng(1).uniform(0, 30, (40, 2))
    assert len(label_places(crowd, ["P1"] * 40, none, [along])) == 40


def test_labels_keep_off_what_is_written_already() -> None:
    one, none = np.array([[50.0, 50.0]]), np.zeros((0, 2))
    scale = np.array([55.0, 30.0, 120.0, 60.0])
    assert label_places(one, ["P1"], none, reserved=[scale])[0].tolist() == [50 - 6 - 12.4, 47]
