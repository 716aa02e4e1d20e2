"""Readers: every export becomes the table that the same runs make as a pilot file."""

import json

import numpy as np
import pandas as pd
import pytest

import replan
from replan import ArgumentError
from replan.pilots import Pilots
from replan.pilots.readers import read_pilots

COLUMNS = ["run", "step", "lr", "loss"]
ROWS = [("a", 0, 0.1, None), ("a", 10, 0.1, 3.0), ("a", 20, 0.05, 2.5), ("b", 10, 0.2, 4.0)]
EXPECTED = pd.DataFrame(ROWS, columns=COLUMNS)
A = EXPECTED[EXPECTED.run == "a"]


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        if isinstance(content, pd.DataFrame):
            content = content.to_csv(index=False)
        elif not isinstance(content, str):
            content = json.dumps(content)
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, "utf-8")
        return path

    return write


def same(table, expected=EXPECTED):
    """Compare tables in any order of rows and columns, and whether from_table takes them."""
    assert sorted(table.columns) == sorted(expected.columns)
    tables = [
        x.sort_values(["run", "step"]).reset_index(drop=True)[list(expected.columns)]
        for x in (table, expected)
    ]
    pd.testing.assert_frame_equal(*tables, check_dtype=False)
    runs = Pilots.from_table(table).runs
    assert {run.name for run in runs} == set(expected.run)


def panel(metric, column, axis="Step"):
    """Export a metric as a panel of Weights & Biases does: one column for each run, two beside."""
    lines = EXPECTED.pivot(index="step", columns="run", values=column)
    table = pd.DataFrame({axis: lines.index})
    for run in lines:
        table[f"{run} - _step"] = table[f"{run} - _step__MIN"] = lines.index
        for suffix in ("", "__MIN", "__MAX"):
            table[f"{run} - {metric}{suffix}"] = lines[run].to_numpy()
    return table


# Pilot files


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pilots.csv", EXPECTED),
        ("pilots.CSV", "\ufeff" + EXPECTED.to_csv(index=False) + ",,,\n\n"),
        ("pilots.json", json.loads(EXPECTED.to_json(orient="records"))),
        ("pilots.json", json.loads(EXPECTED.to_json())),
        ("pilots.json", dict(zip(COLUMNS, zip(*ROWS, strict=True), strict=True))),
        ("pilots.JSONL", EXPECTED.to_json(orient="records", lines=True) + "\n"),
    ],
)
def test_pilot_files(write, name, content):
    same(read_pilots(write(name, content)))


def test_all_columns_of_a_pilot_file_are_kept_and_others_named(write):
    table = EXPECTED.rename(columns={"loss": "loss_web"}).assign(
        tokens=[1, 1001, 2001, 1001],
        batch=8,
        share_web=1.0,
        unique_tokens_web=5e6,
        **{"continue": ["", "", "", "a"], "loss_code": 2.0},
    )
    result = read_pilots(write("pilots.csv", table.assign(shares_web=3.0, note="x")))
    assert result["continue"].isna().sum() == 3
    same(result.fillna({"continue": ""})[list(table)], table)
    told = " ".join(replan.Pilots.from_table(result).warnings)
    assert "COLUMNS NOT USED: shares_web, note, did you mean `share_web`?" in told


def test_capitals_do_not_matter(write):
    table = EXPECTED.rename(columns={"run": "Run", "step": "Step", "lr": "LR", "loss": "Loss"})
    same(read_pilots(write("pilots.csv", table)), EXPECTED)


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("run;step;lr\na;0;0,1\n", "pilots", r"a\.csv: .* commas between its columns"),
        ("step,lr,loss\n0,1,2\n5,1,2\n0,1,3\n", "run", r"a\.csv: .* several runs"),
    ],
)
def test_tables_of_another_shape_are_refused_by_name(write, text, name, words):
    with pytest.raises(ArgumentError, match=words) as refused:
        read_pilots(write("a.csv", text))
    assert refused.value.name == name


def test_tokens_count_where_there_are_no_steps(write):
    table = EXPECTED.rename(columns={"step": "tokens"})
    same(read_pilots(write("pilots.csv", table)), table.assign(step=table.tokens))


@pytest.mark.parametrize("run", ["007", "NA", "null"])
def test_names_of_runs_are_texts(write, run):
    table = EXPECTED.assign(run=EXPECTED.run + run)
    same(read_pilots(write("pilots.csv", table)), table)


def test_duplicates_of_a_pilot_file_are_refused_by_name(write):
    path = write("pilots.csv", pd.concat([EXPECTED, EXPECTED.iloc[1:2]]))
    assert len(read_pilots(path)) == 5
    with pytest.raises(ArgumentError, match="`step` must be different in all rows of a, got 10"):
        Pilots.read(path)
    with pytest.raises(ArgumentError, match="lr of run a at step 10 twice"):
        read_pilots(path, write("other.csv", EXPECTED.assign(run="c")))


def test_texts_where_numbers_must_be_are_left_for_from_table(write):
    table = read_pilots(write("pilots.csv", "run,step,lr,loss\na,0,0.1,3\na,1,fast,2"))
    with pytest.raises(ArgumentError, match=r"`lr` must be numbers.*'fast' in a"):
        Pilots.from_table(table)


# Weights & Biases


@pytest.mark.parametrize("axis", ["Step", "train/global_step", "epoch", "Relative Time (Process)"])
def test_panels_are_joined(write, axis):
    loss = write("loss.csv", panel("train/loss", "loss", axis))
    lr = write("lr.csv", panel("train/learning_rate", "lr", axis))
    same(read_pilots(loss, lr))
    same(read_pilots(lr, loss))


def test_names_of_runs_in_panels_may_contain_dashes(write):
    table = panel("train/loss", "loss").merge(panel("train/lr", "lr")[["Step", "a - train/lr"]])
    table = table.filter(regex="^Step|^a - ")
    table.columns = [x.replace("a - ", "Group: a - 0.5 - ") for x in table]
    same(read_pilots(write("x.csv", table)), A.assign(run="Group: a - 0.5"))


def test_panels_with_runs_of_the_same_name_are_refused(write):
    text = "Step,a - loss,a - loss\n0,3.0,4.0\n"
    with pytest.raises(ArgumentError, match=r"different columns, got 'a - loss' twice"):
        read_pilots(write("loss.csv", text))


def test_panels_over_time_need_steps(write):
    path = write("loss.csv", panel("loss", "loss", "Wall Time").filter(regex="Wall|loss$"))
    with pytest.raises(ArgumentError, match=r"loss\.csv: .* steps on its x-axis, got 'Wall Time'"):
        read_pilots(path)


def test_panels_without_values_are_refused(write):
    with pytest.raises(ArgumentError, match="a panel with values, got columns a - loss"):
        read_pilots(write("loss.csv", "Step,a - loss\n0,\n1,\n"))


def test_different_x_axes_are_not_joined(write):
    loss = write("loss.csv", panel("train/loss", "loss"))
    lr = write("lr.csv", panel("train/learning_rate", "lr", "train/global_step"))
    with pytest.raises(ArgumentError, match=r"`step` .* got _step and train/global_step"):
        read_pilots(loss, lr)


# Transformers' W&B callback: _step counts calls; the loss of an evaluation and the summary at the
# end are further rows of the same global step.
HISTORY = [
    {"_step": 0, "train/global_step": 0, "train/learning_rate": 0.1, "train/loss": None},
    {"_step": 1, "train/global_step": 10, "train/learning_rate": 0.1},
    {"_step": 2, "train/global_step": 10, "train/loss": 3.0, "weights": {"_type": "histogram"}},
    {"_step": 3, "train/global_step": 20, "train/learning_rate": 0.05, "train/loss": 2.5},
    {"_step": 4, "train/global_step": 20, "train/train_loss": 2.8, "train/loss": "NaN"},
    {"_step": 5, "train/global_step": None, "train/loss": None, "gpu": 0.5},
]
HISTORY = [{"_runtime": 2.0 * i, "_timestamp": 1.7e9 + i} | row for i, row in enumerate(HISTORY)]
FRAME = pd.DataFrame(HISTORY)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", FRAME.to_csv()),  # with pandas' index
        ("a.csv", FRAME.drop(columns="weights")),
        ("a.json", HISTORY),
        ("a.json", FRAME.to_json()),
        ("a.jsonl", "\n".join(map(json.dumps, HISTORY))),
        ("x.json", [row | {"run_id": "a"} for row in HISTORY]),
        ("x.csv", FRAME.assign(Name="a")),
    ],
)
def test_histories(write, name, content):
    path = write(name, content)
    same(read_pilots(path), A)


@pytest.mark.parametrize("step", ["_step", "trainer/global_step", "iter"])
def test_steps_of_histories(write, step):
    table = A.drop(columns="run").rename(columns={"step": step, "loss": "val_loss"})
    if step != "_step":
        table["_step"] = range(3)
    same(read_pilots(write("a.csv", table)), A)


def test_histories_of_several_runs_in_different_formats(write):
    other = [{"_step": 10, "lr": 0.2, "loss": 4.0}]
    same(
        read_pilots(
            write("a.csv", A.drop(columns="run").rename(columns={"step": "_step"})),
            write("b.json", other),
        )
    )


def test_a_resumed_history_counts_from_its_last_values(write):
    before = {"_step": 0, "train/global_step": 20, "train/learning_rate": 0.1, "train/loss": 9.9}
    same(read_pilots(write("a.json", [before, *HISTORY])), A)


def test_two_files_of_the_same_name_are_not_mixed(write):
    paths = [write(f"{x}/history.json", [{"_step": 5, "lr": x, "loss": 3.0}]) for x in (1, 2)]
    with pytest.raises(ArgumentError, match="lr of run history at step 5 twice"):
        read_pilots(*paths)


# TensorBoard


def scalar(column):
    return A[["step", column]].dropna().set_axis(["Step", "Value"], axis=1)


@pytest.mark.parametrize("lr_name", ["run-a-tag-train_learning_rate", "run-a-tag-lr (1)"])
@pytest.mark.parametrize("ending", ["csv", "json"])
def test_scalars(write, lr_name, ending):
    paths = []
    for name, column in (("run-a-tag-train_loss", "loss"), (lr_name, "lr")):
        table = scalar(column)
        table.insert(0, "Wall time", 1.7e9)
        paths.append(
            write(f"{name}.{ending}", table if ending == "csv" else table.to_numpy().tolist())
        )
    same(read_pilots(*paths), A)


def test_values_that_are_no_numbers_are_empty(write):
    """TensorBoard writes them as nan to .csv, and as a string to .json."""
    lr = write("run-a-tag-lr.csv", "Wall time,Step,Value\n1,0,0.1\n1,10,0.1\n1,20,0.05\n")
    for loss in (
        write("run-a-tag-loss.csv", "Wall time,Step,Value\n1,0,nan\n1,10,3.0\n1,20,2.5\n"),
        write("run-a-tag-loss.json", [[1, 0, "NaN"], [1, 10, 3.0], [1, 20, 2.5]]),
    ):
        same(read_pilots(loss, lr), A)


def test_scalars_are_called_after_run_and_tag(write):
    with pytest.raises(ArgumentError, match=r"called run-<run>-tag-<tag>.* got 'a'"):
        read_pilots(write("a.csv", "Wall time,Step,Value\n1,0,3.0\n"))


# olmix, with the example of its README

RATIOS = """run,name,index,dclm,wikipedia,arxiv
hz0dfydj,my-swarm-0000,0,0.45,0.30,0.25
pj0hxxl7,my-swarm-0001,1,0.60,0.20,0.20
sqleanmq,my-swarm-0002,2,0.33,0.33,0.345
"""
METRICS = """,run_id,name,index,arc_challenge_bpb,mmlu/stem
0,pj0hxxl7,my-swarm-0001,1,1.15,
1,hz0dfydj,my-swarm-0000,0,1.23,1.45
2,unknown1,my-swarm-0009,0,1.23,1.45
"""
MIXTURES = pd.DataFrame(
    {
        "run": ["hz0dfydj", "pj0hxxl7"],
        "step": 1.0,
        "lr": 1.0,
        "share_dclm": [0.45, 0.6],
        "share_wikipedia": [0.3, 0.2],
        "share_arxiv": [0.25, 0.2],
        "loss_arc_challenge_bpb": [1.23, 1.15],
        "loss_mmlu/stem": [1.45, np.nan],
    }
)


def test_mixtures(write):
    ratios, metrics = write("ratios.csv", RATIOS), write("metrics.csv", METRICS)
    same(read_pilots(ratios, metrics), MIXTURES)
    same(read_pilots(metrics, ratios), MIXTURES)
    chosen = read_pilots(ratios, metrics, loss=["arc_challenge_bpb"])
    renamed = MIXTURES.rename(columns={"loss_arc_challenge_bpb": "loss"})
    same(chosen, renamed.drop(columns="loss_mmlu/stem"))


def test_shares_are_made_to_sum_to_one(write):
    table = read_pilots(write("ratios.csv", RATIOS))
    assert table.filter(like="share_").sum(axis=1).to_numpy() == pytest.approx(1, abs=1e-12)
    assert len(Pilots.from_table(table).runs) == 3


def test_shares_of_logged_runs(write):
    shares = pd.DataFrame({"run": ["b", "a"], "web": [0.4, 1.0], "code": [0.6, 0.0]})
    expected = EXPECTED.assign(share_web=[1, 1, 1, 0.4], share_code=[0, 0, 0, 0.6])
    same(read_pilots(write("pilots.csv", EXPECTED), write("ratios.csv", shares)), expected)


def test_mixtures_need_ratios_and_common_runs(write):
    with pytest.raises(ArgumentError, match="got columns run, arc_challenge_bpb, mmlu/stem, w"):
        read_pilots(write("metrics.csv", METRICS))
    with pytest.raises(ArgumentError, match="files with the same runs"):
        read_pilots(write("ratios.csv", RATIOS), write("metrics.csv", METRICS.replace("j", "x", 4)))


# Which metrics


@pytest.mark.parametrize(
    ("metrics", "options", "columns"),
    [
        (["lr", "loss", "eval/loss"], {}, {"lr": "lr", "loss": "loss"}),
        (["optim/LR (group 0)", "train/CE loss"], {}, {"optim/LR (group 0)": "lr"}),
        (["lr-AdamW", "train/loss", "z_loss_x"], {}, {"lr-AdamW": "lr", "train/loss": "loss"}),
        (
            ["lr", "train/loss", "eval/loss"],
            {},
            {"train/loss": "loss_train/loss", "eval/loss": "loss_eval/loss"},
        ),
        (["lr", "loss", "eval/web"], {"loss": ["eval/web"]}, {"eval/web": "loss"}),
        (["lr", "loss_web", "loss_code"], {"loss": ["web"]}, {"loss_web": "loss_web"}),
        (["lr", "eta", "loss"], {"lr": "eta"}, {"eta": "lr", "loss": "loss"}),
    ],
)
def test_metrics_are_found_or_named(write, metrics, options, columns):
    values = {x: [float(i + 1)] for i, x in enumerate(metrics)}
    table = read_pilots(write("a.csv", pd.DataFrame({"_step": [3], **values})), **options)
    for metric, column in columns.items():
        assert table[column].tolist() == values[metric]
    if len(columns) > 1 or options:
        losses = {x for x in columns.values() if x != "lr"}
        assert set(table.columns) == {"run", "step", "lr"} | losses


def test_a_schedule_needs_no_loss(write):
    same(read_pilots(write("a.csv", EXPECTED[["run", "step", "lr"]])), EXPECTED[COLUMNS[:3]])


@pytest.mark.parametrize(
    ("columns", "options", "name", "message"),
    [
        (
            "run,step,loss",
            {},
            "lr",
            "the column with the learning rate, got columns run, step, los",
        ),
        ("_step,lr-a,lr-b", {}, "lr", "the learning rate, got several: lr-a, lr-b"),
        ("run,step,lr", {"lr": "rl"}, "lr", "one of .*'rl', did you mean `lr`?"),
        ("run,step,lr", {"loss": ["los"]}, "loss", "one of run, step, lr"),
        ("run,step,lr", {"loss": "lr"}, "loss", "a list of metrics"),
    ],
)
def test_metrics_that_are_not_there(write, columns, options, name, message):
    path = write("a.csv", f"{columns}\n{','.join('123456'[: columns.count(',') + 1])}\n")
    with pytest.raises(ArgumentError, match=message) as error:
        read_pilots(path, **options)
    assert error.value.name == name


# Files that are no pilots


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "olmix, got no table"),
        ("a.csv", "\n\n", "olmix, got no table"),
        ("a.csv", "run,step,lr,loss\n", "a table with rows, got none"),
        ("a.csv", "run,step\na,1,2,3\n", "no table .*line 2"),
        ("a.csv", "run,step,lr,lr\na,1,2,3\n", "different columns, got 'lr' twice"),
        ("a.csv", "x,y\n1,2\n", "olmix, got columns x, y"),
        ("a.csv", "run,step,lr\na,1,2\n,2,2\n", "`run` must be given in all rows, got none in row"),
        ("a.json", "", "no table"),
        ("a.json", "{", "no table"),
        ("a.json", "[" * 100_000, "no table"),
        ("a.json", "3", "no table"),
        ("a.json", "null", "a table with rows"),
        ("a.json", "[]", "a table with rows"),
        ("a.json", "[1, 2]", "olmix, got columns 0"),
        ("a.json", '{"a": 1}', "no table"),
        ("a.json", '[{"a": 1}, 3]', "no table"),
        ("run-a-tag-b.json", "[[1, 2]]", "no table"),
        ("a.jsonl", '{"run": "a"}\n{', "no table"),
        ("a.txt", "run,step,lr\na,1,2\n", "a file name that ends in .csv or .json or .jsonl"),
        ("a.parquet", "", "a file name that ends in"),
    ],
)
def test_files_that_cannot_be_read(write, name, text, message):
    path = write(name, text)
    with pytest.raises(ArgumentError, match=message) as error:
        read_pilots(path)
    assert str(error.value).startswith(f"{path}: `")


def test_paths_that_are_no_files(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for path, message in (
        (tmp_path / "missing.csv", "missing.csv: `pilots` must be a file that can be read, got No"),
        (tmp_path / "folder.csv", "a file, got"),
        (tmp_path / "binary.csv", "UTF-8"),
        (3, "`pilots` must be a path, got 3"),
    ):
        with pytest.raises(ArgumentError, match=message):
            read_pilots(path)
    with pytest.raises(ArgumentError, match="one or more files, got none"):
        read_pilots()


# From panels to a law


def test_the_fit_of_two_panels_is_that_of_their_table(write):
    steps = np.arange(0, 6000, 100)
    shapes = {
        "constant": np.ones(60),
        "cosine": 0.55 + 0.45 * np.cos(np.pi * steps / 6000),
        "linear": 1 - steps / 6000,
    }
    noise = np.random.default_rng(0)
    table = pd.concat(
        pd.DataFrame(
            {
                "run": run,
                "step": steps,
                "lr": 1e-3 * shape,
                "loss": (2 + (1 + np.cumsum(shape)) ** -0.5 + 0.1 * shape)
                * np.exp(0.001 * noise.normal(size=60)),
            }
        )
        for run, shape in shapes.items()
    )
    panels = []
    for metric, column in (("train/loss", "loss"), ("train/learning_rate", "lr")):
        lines = table.pivot(index="step", columns="run", values=column)[list(shapes)]
        lines = pd.concat(
            [lines.add_suffix(f" - {metric}{x}") for x in ("", "__MIN", "__MAX")], axis=1
        )
        panels.append(write(f"{column}.csv", lines.rename_axis("Step").reset_index()))
    fit, expected = replan.fit(read_pilots(*panels)), replan.fit(table)
    assert [run.name for run in fit.pilots.runs] == list(shapes)
    assert fit.law.laws == pytest.approx(expected.law.laws, rel=1e-6)
    assert fit.fitted.scale < 0.01
