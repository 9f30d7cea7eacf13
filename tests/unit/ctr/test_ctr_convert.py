"""Public files in, the common layout out; and what a user is told when a file is not right."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from paceline.base.errors import ConfigError
from paceline.features.data import convert
from paceline.features.data.tables import read_meta
from paceline.features.data.verbs import app, parse_vocab

RICH = "50, ?, 83311, Bachelors, 13, Divorced, Sales, Wife, White, Female, 7, 0, 13, Cuba, >50K"
POOR = "39, Private, 77516, HS-grad, 9, Divorced, Sales, Wife, White, Male, 0, 0, 40, Cuba, <=50K"


def columns(directory: Path) -> dict[str, list[Any]]:
    return pq.read_table(directory).to_pydict()


def write_adult(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adult.data").write_text(f"{RICH}\n{POOR}\n{POOR}\n\n")
    with gzip.open(folder / "adult.test.gz", "wt") as file:
        file.write(f"|1x3 Cross validator\n{POOR}.\n{RICH}.")
    return folder


def test_adult_labels_lose_their_dot_and_unknown_is_a_category(tmp_path: Path) -> None:
    meta = convert.adult(write_adult(tmp_path / "adult"), tmp_path / "out")
    train, test = columns(tmp_path / "out/train"), columns(tmp_path / "out/test")
    assert train["label"] == [1, 0, 0]
    assert test["label"] == [0, 1]
    assert train["age"] == [50.0, 39.0, 39.0]
    assert train["workclass"] == [0, 1, 1]
    assert test["workclass"] == [1, 0]
    assert meta.categorical["workclass"] == 2
    assert set(train) == {"label", *meta.numeric, *meta.categorical}
    assert meta == read_meta(tmp_path / "out")


def test_files_are_found_one_folder_down_and_by_environment(tmp_path: Path) -> None:
    write_adult(tmp_path / "adult")
    done = CliRunner().invoke(
        app, ["adult", "--out", str(tmp_path / "out")], env={"PACELINE_DATA": str(tmp_path)}
    )
    assert done.exit_code == 0, done.output
    assert "2 rows" in done.output


def test_an_adult_line_with_a_missing_cell_is_named(tmp_path: Path) -> None:
    write_adult(tmp_path)
    (tmp_path / "adult.data").write_text(f"{RICH}\n39, Private\n")
    with pytest.raises(ConfigError, match=r"adult\.data:2: got .* expected 15 columns"):
        convert.adult(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_adult_number_that_is_text_is_refused(tmp_path: Path) -> None:
    write_adult(tmp_path)
    (tmp_path / "adult.data").write_text(RICH.replace("50,", "fifty,") + "\n")
    with pytest.raises(ConfigError, match="fifty"):
        convert.adult(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("run", "name", "site"),
    [
        (convert.adult, "adult.data", "archive.ics.uci.edu"),
        (convert.movielens, "ratings.csv", "grouplens.org"),
        (lambda source, out: convert.criteo(source, out, 10), "train.txt", "criteo.com"),
    ],
)
def test_a_missing_file_says_where_to_get_it(
    tmp_path: Path, run: Any, name: str, site: str
) -> None:
    with pytest.raises(ConfigError, match=f"{name} .*{tmp_path}.*{site}.*PACELINE_DATA"):
        run(tmp_path, tmp_path / "out")


def test_two_candidates_are_not_guessed_between(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "ratings.csv").touch()
    with pytest.raises(ConfigError, match="name the one folder"):
        convert.movielens(tmp_path, tmp_path / "out")


def test_plain_and_packed_side_by_side_are_one_file(tmp_path: Path) -> None:
    for name in ("train.txt", "train.txt.gz"):
        (tmp_path / name).touch()
    assert convert.find(tmp_path, "train.txt", "criteo") == tmp_path / "train.txt"


def write_ratings(folder: Path) -> None:
    lines = [
        f"{user},{10 * movie},{movie % 5 + 1},{900 - movie}"
        for user in (7, 9)
        for movie in range(11)
    ]
    (folder / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + "\n".join(lines))


def test_movielens_holds_out_the_latest_of_each_user(tmp_path: Path) -> None:
    write_ratings(tmp_path)
    meta = convert.movielens(tmp_path, tmp_path / "out")
    train, test = columns(tmp_path / "out/train"), columns(tmp_path / "out/test")
    # Eleven ratings a user: two are held out, and time runs against the movie's number.
    assert sorted(zip(test["user"], test["movie"], strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(train["label"]) == 18
    assert meta.categorical == {"user": 2, "movie": 11}
    liked = dict(zip(train["movie"], train["label"], strict=True))
    assert liked == {movie: int(movie % 5 + 1 >= 4) for movie in range(2, 11)}


def test_movielens_genres_are_flags_of_the_movie(tmp_path: Path) -> None:
    write_ratings(tmp_path)
    movies = ["movieId,title,genres", "0,A,Comedy|War", '20,"B, C",War', "30,D,(no genres listed)"]
    (tmp_path / "movies.csv").write_text("\n".join(movies))
    meta = convert.movielens(tmp_path, tmp_path / "out")
    assert meta.numeric == ("genre_Comedy", "genre_War")
    test, train = columns(tmp_path / "out/test"), columns(tmp_path / "out/train")
    assert [test["genre_Comedy"][test["movie"].index(k)] for k in (0, 1)] == [1.0, 0.0]
    assert [train["genre_War"][train["movie"].index(k)] for k in (2, 3)] == [1.0, 0.0]


def test_a_ratings_file_without_its_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("userId,movieId,stars\n1,2,3\n")
    with pytest.raises(ConfigError, match="no column rating; it has userid, movieid, stars"):
        convert.movielens(tmp_path, tmp_path / "out")


def criteo_line(number: int, label: int = 0, **cells: str) -> str:
    values = {f"I{i}": str(number) for i in range(1, 14)} | {
        f"C{i}": "0000000f" for i in range(1, 27)
    }
    return "\t".join([str(label), *(values | cells).values()])


def test_criteo_keeps_missing_numbers_and_gives_missing_ids_code_zero(tmp_path: Path) -> None:
    lines = [criteo_line(n, label=n % 2) for n in range(20)]
    lines[3] = criteo_line(3, label=1, I2="", C1="", C26="ffffffff")
    with gzip.open(tmp_path / "train.txt.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    meta = convert.criteo(tmp_path, tmp_path / "out", buckets=10)
    train, test = columns(tmp_path / "out/train"), columns(tmp_path / "out/test")
    assert test["I1"] == [9.0, 19.0]
    assert len(train["label"]) == 18
    assert np.isnan(train["I2"][3])
    assert (train["C1"][3], train["C1"][4]) == (0, 1 + 15 % 10)
    assert train["C26"][3] == 1 + 0xFFFFFFFF % 10
    assert meta.categorical["C1"] == 11
    assert (meta.rows, meta.positives) == (20, 10)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0\t1\t2", "tab-separated"),
        (criteo_line(1, C3="zz"), "hex"),
        (criteo_line(1, I3="x"), "invalid value .x."),
    ],
)
def test_a_line_that_is_not_criteos_is_refused(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "train.txt").write_text(line + "\n")
    with pytest.raises(ConfigError, match=said):
        convert.criteo(tmp_path, tmp_path / "out", buckets=10)


def test_make_ctr_prints_and_stores_the_ceiling(tmp_path: Path) -> None:
    out = tmp_path / "ctr"
    flags = ["make-ctr", "--rows", "2000", "--seed", "7", "--vocab", "50", "--out", str(out)]
    done = CliRunner().invoke(app, flags)
    assert done.exit_code == 0, done.output
    meta = read_meta(out)
    assert meta.categorical == {f"C{i}": 50 for i in range(1, 27)}
    assert meta.seed == 7
    assert f"best possible AUC on test: {meta.bayes_auc:.4f}" in done.output


def test_vocab_takes_one_number_or_26() -> None:
    assert parse_vocab("9") == (9,) * 26
    assert parse_vocab(",".join(map(str, range(1, 27)))) == tuple(range(1, 27))
    for text in ("1,2", "ten"):
        with pytest.raises(ConfigError, match="--vocab"):
            parse_vocab(text)


def test_an_unfinished_directory_is_not_taken_for_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no finished data set"):
        read_meta(tmp_path)
    (tmp_path / "meta.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"not the meta\.json"):
        read_meta(tmp_path)
