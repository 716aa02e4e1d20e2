"""Exports: each in the documented structure of the project that reads it.

YAML is read by PyYAML, where there is one. Their own parsers read these files, too: docs/files.md
says in which versions. `datasets` is asked in frameworks/test_datasets.py.
"""

import csv
import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from documented import run_example
from replan import ArgumentError, Protocol
from replan.exports import FORMATS, export, load
from replan.models import RateLaw, ShareLaw

yaml = pytest.importorskip("yaml")

TWO = Protocol([[0, 1], [0.3, 0.7]], edges=[0, 1, 4], lr=[1.0, 1e-5])
NAMES = ["web", "code"]


def text(to, protocol=TWO, **options):
    (written,) = export(protocol, to, **{"steps": 1000, "names": NAMES} | options)
    return written


def test_the_example_runs():
    assert run_example("replan.exports.export")


def test_json_yaml_and_csv_hold_the_same():
    content = json.loads(text("json"))
    assert content["steps"] == 1000
    assert content["stages"] == [
        {"start_step": 0, "end_step": 250, "weights": {"web": 0.0, "code": 1.0}, "lr": 1.0},
        {"start_step": 250, "end_step": 1000, "weights": {"web": 0.3, "code": 0.7}, "lr": 1e-5},
    ]
    assert yaml.safe_load(text("yaml")) == content
    rows = list(csv.DictReader(io.StringIO(text("csv"))))
    assert [row["weight_web"] for row in rows] == ["0.0", "0.3"]
    assert [(row["start_step"], row["lr"]) for row in rows] == [("0", "1.0"), ("250", "1e-05")]


def test_rates_of_tasks_have_their_names():
    own = TWO.with_knobs(lr=[[0.1, 0.2], [0.3, 0.4]], keep=[0.5, 0.6])
    row = json.loads(text("json", own))["stages"][0]
    assert (row["lr"], row["keep"]) == ({"web": 0.1, "code": 0.2}, 0.5)
    assert text("csv", own).startswith(
        "start_step,end_step,weight_web,weight_code,lr_web,lr_code,keep\n"
    )


def test_datasets_are_interleaved_where_they_have_a_share():
    first, second = json.loads(text("datasets"))["stages"]
    assert (first["datasets"], first["probabilities"]) == (["code"], [1.0])
    assert (second["datasets"], second["probabilities"]) == (["web", "code"], [0.3, 0.7])


def test_levanter_begins_weights_at_steps():
    weights = yaml.safe_load(text("levanter", multiple=100))["data"]["train_weights"]
    assert weights == [[0, {"web": 0.0, "code": 1.0}], [200, {"web": 0.3, "code": 0.7}]]


def test_energon_has_a_blend_for_each_stage():
    files = export(TWO, "energon", steps=1000, names=["./web", "./code"])
    first, second = map(yaml.safe_load, files)
    assert (first["__module__"], first["__class__"]) == ("megatron.energon", "MetadatasetV2")
    assert first["splits"]["train"]["blend"] == [{"weight": 1.0, "path": "./code"}]
    assert [x["path"] for x in second["splits"]["train"]["blend"]] == ["./web", "./code"]


def test_megatron_has_weights_and_prefixes_for_each_stage():
    assert export(TWO, "megatron", steps=1000, names=["a/web", "a/code"]) == [
        "1.0 a/code\n",
        "0.3 a/web 0.7 a/code\n",
    ]


def test_llm_foundry_has_a_first_dataset_and_a_schedule_of_all_tokens():
    content = yaml.safe_load(text("llm-foundry", steps=1_000_000))
    callback = content["callbacks"]["curriculum_learning"]
    durations = [callback["duration"], *(part["duration"] for part in callback["schedule"])]
    assert durations == ["250000tok", "750000tok"]
    assert content["max_duration"] == "1000000tok"
    assert content["train_loader"]["dataset"]["streams"] == {
        "code": {"local": "code", "proportion": 1.0}
    }
    assert [*callback["schedule"][0]["dataset"]["streams"]] == ["web", "code"]
    assert "callbacks" not in yaml.safe_load(text("llm-foundry", TWO.stages(1)[0]))


def test_a_table_of_rates_has_a_factor_for_every_step():
    content = json.loads(text("lambda-lr", TWO.with_knobs(lr=[0.2, 0.05])))
    assert content["peak"] == 0.2
    assert content["factors"] == [1.0] * 250 + [0.25] * 751


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(1, 30), st.integers(1, 500), st.integers(0, 2**32))
def test_stages_fill_the_training_and_weights_sum_to_one(tasks, pieces, steps, seed):
    rng = np.random.default_rng(seed)
    edges = np.cumsum(rng.random(pieces) + 1e-3)
    shares = rng.dirichlet(np.full(tasks, 0.2), size=pieces)
    protocol = Protocol(shares, edges=[0, *edges])
    names = ["no", "a: b", 'qu"ote', "1e5", "null", "é"][:tasks]
    for to in ("json", "yaml"):
        multiple = int(rng.integers(1, steps + 1))
        written = text(to, protocol, steps=steps, names=names, multiple=multiple)
        stages = yaml.safe_load(written)["stages"]
        starts, ends = zip(*((x["start_step"], x["end_step"]) for x in stages), strict=True)
        assert (starts[0], ends[-1]) == (0, steps)
        assert starts[1:] == ends[:-1]
        assert not any(start % multiple for start in starts)
        for stage in stages:
            assert stage["end_step"] > stage["start_step"]
            assert list(stage["weights"]) == names
            assert sum(stage["weights"].values()) == pytest.approx(1.0, abs=1e-12)
    for part in export(protocol, "llm-foundry", steps=steps, names=names):
        assert set(yaml.safe_load(part)["train_loader"]["dataset"]["streams"]) <= set(names)


@pytest.mark.parametrize(
    ("to", "options", "name"),
    [
        ("torchtitan", {}, "to"),
        ("json", {"steps": 0}, "steps"),
        ("json", {"steps": 1.5}, "steps"),
        ("json", {"multiple": 0}, "multiple"),
        ("json", {"multiple": 1001}, "multiple"),
        ("json", {"names": ["web"]}, "names"),
        ("json", {"names": ["web", "web"]}, "names"),
        ("json", {"names": ["web", ""]}, "names"),
        ("json", {"names": ["web", "code", "code"]}, "names"),
        ("megatron", {"names": ["web", "my code"]}, "names"),
    ],
)
def test_refused(to, options, name):
    with pytest.raises(ArgumentError) as caught:
        text(to, **options)
    assert caught.value.name == name


def test_a_table_of_rates_needs_one_rate():
    for protocol in (Protocol([[1, 0]], 1.0), TWO.with_knobs(lr=[[1, 2], [1, 2]])):
        with pytest.raises(ArgumentError) as caught:
            text("lambda-lr", protocol)
        assert caught.value.name == "to"


def test_every_format_writes_text():
    for to in FORMATS:
        assert all(part.endswith("\n") for part in export(TWO, to, steps=1000))


def recommended(table):
    """The file of an advice, as far as it is read."""
    columns = {name: np.asarray(column).tolist() for name, column in table.items()}
    return json.dumps({"recommended": {"name": "cosine", **columns}, "relaxed": {}})


def test_the_rates_that_a_law_recommends(tmp_path):
    law = RateLaw([[2.4, 1.0, 0.45, 0.12, 60.0, 0.5, 0.6]], peak=1e-3, unit=400.0)
    law.covered = {"starts_at": 500.0}
    (tmp_path / "plan.json").write_text(recommended(law.table(1000.0, np.array([1e-3, 5e-4]))))
    source = load(tmp_path / "plan.json")
    assert (source.steps, source.names) == (1000, ["data"])
    content = json.loads(export(source.protocol, "lambda-lr", steps=source.steps)[0])
    assert content["factors"] == [1.0] * 500 + [0.5] * 501


def test_the_shares_that_a_law_recommends(tmp_path):
    numbers = [0.7, 1.0, 0.3, 0.1, 2.4, 0.001, 1.0, 2.7, 0.01, 0.0, 2.3]
    law = ShareLaw([[numbers]], NAMES, ["code"], 1000.0, [0, 26])
    law.covered = {"best": {"progress": [0.0, 0.5, 1.0], "steps": [0.0, 0.4, 1.0]}}
    table = law.table(2000.0, np.array([[1.0, 0.0], [0.2, 0.8]]))
    (tmp_path / "plan.json").write_text(recommended(table))
    source = load(tmp_path / "plan.json")
    assert (source.steps, source.names) == (2000, NAMES)
    stages = json.loads(export(source.protocol, "json", steps=2000, names=NAMES)[0])["stages"]
    assert [x["start_step"] for x in stages] == [0, 800]
    assert stages[1]["weights"] == {"web": 0.2, "code": 0.8}


@pytest.mark.parametrize("content", [3, {}, {"step": [0, 1]}, {"lr": [1, 1]}])
def test_a_recommendation_without_a_table_is_refused(tmp_path, content):
    (tmp_path / "plan.json").write_text(json.dumps({"recommended": content}))
    with pytest.raises(ArgumentError) as caught:
        load(tmp_path / "plan.json")
    assert caught.value.name == "recommended"
