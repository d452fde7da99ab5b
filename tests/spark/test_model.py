"""transform, factors and Params of OneBitCompletionModel, against the in-process fit."""

import datetime

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.ml import PipelineModel
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, IntegerType

from onebit_spark import RequestError

SLOW = pytest.mark.slow
KINDS = [
    pytest.param({"loss": loss, "covariance": covariance, "intercepts": intercepts}, marks=marks)
    for loss, covariance, intercepts, marks in (
        ("logistic", "diagonal", True, ()),
        ("hinge", "full", False, ()),
        ("logistic", "full", True, SLOW),  # the model of the other tests
        ("logistic", "full", False, SLOW),
        ("logistic", "diagonal", False, SLOW),
        ("hinge", "full", True, SLOW),
    )
]
OUTPUTS = ["score", "std", "probability", "prediction", "rawPrediction"]

# Known and unknown on either side: rows 28, 29 and columns 18, 19 have no rating, 99 and −1 are
# beyond any shape.
USERS = np.array([0, 3, 27, 28, 29, 99, 5, 99, 3, -1])
ITEMS = np.array([0, 17, 4, 2, 18, 1, 19, 99, 17, 0])


def pairs(spark, users=USERS, items=ITEMS):
    return spark.createDataFrame(
        pa.table({"at": np.arange(len(users)), "user": users, "item": items})
    )


def assert_same_as_fit(predictions, fit, users=USERS, items=ITEMS):
    table = predictions.orderBy("at").toArrow()
    for name in ("score", "std", "probability"):
        expected = getattr(fit, name)(users, items)
        np.testing.assert_allclose(
            table[name].to_numpy(), expected, rtol=1e-6, atol=1e-6, err_msg=name
        )
    np.testing.assert_array_equal(table["prediction"].to_numpy(), fit.predict(users, items))
    np.testing.assert_array_equal(table["rawPrediction"].to_numpy(), table["score"].to_numpy())


# ---- transform ---------------------------------------------------------------------------------


@pytest.mark.parametrize("choices", KINDS)
def test_transform_equals_the_fit(spark, make_fit, make_model, choices):
    predictions = make_model(**choices).transform(pairs(spark))
    assert predictions.columns == ["at", "user", "item", *OUTPUTS]
    assert all(predictions.schema[name].dataType == DoubleType() for name in OUTPUTS)
    assert_same_as_fit(predictions, make_fit(**choices))


@SLOW
@pytest.mark.classic
def test_shuffled_joins_give_the_same(spark, make_fit, make_model):
    model = make_model()
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", -1)
    try:
        predictions = model.transform(pairs(spark))
        assert "BroadcastHashJoin" not in plan(predictions)
        assert_same_as_fit(predictions, make_fit())
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def plan(df):
    return df._jdf.queryExecution().executedPlan().toString()


@pytest.mark.classic
def test_factors_enter_python_once_and_alone(spark, make_model):
    text = plan(make_model().transform(pairs(spark)))
    (evaluation,) = [line for line in text.splitlines() if "ArrowEvalPython" in line]
    assert "__onebit_user#" in evaluation
    assert "__onebit_item#" in evaluation
    assert "at#" not in evaluation


def test_columns_of_any_type_come_through(spark, make_model):
    schema = DataType.fromDDL("user bigint, item bigint, m map<string,array<int>>").add(
        "v", VectorUDT()
    )
    schema.add("a.b`c", IntegerType(), metadata={"ml": {"k": 1}})
    df = spark.createDataFrame([(1, 2, {"a": [1, None]}, Vectors.dense([1.0, 2.0]), None)], schema)
    predictions = make_model().transform(df)
    assert predictions.schema[: len(df.columns)] == df.schema
    first = predictions.first()
    assert first["v"] == Vectors.dense([1.0, 2.0])
    assert first["m"] == {"a": [1, None]}


def test_name_clashes_do_not_break(spark, make_fit, make_model):
    clashing = [
        "id",
        "mean",
        "covariance",
        "intercept",
        "__onebit_user",
        "__onebit_item_key",
        "users",
    ]
    df = pairs(spark).select("*", *(F.lit("mine").alias(name) for name in clashing))
    predictions = make_model().transform(df)
    assert predictions.columns == [*df.columns, *OUTPUTS]
    assert predictions.select(*clashing).distinct().collect() == [("mine",) * len(clashing)]
    assert_same_as_fit(predictions, make_fit())


def test_the_models_own_factors_can_be_scored(spark, make_model):
    model = make_model()
    df = model.users.select(F.col("id").alias("user"), "mean").crossJoin(
        model.items.select(F.col("id").alias("item"))
    )
    assert model.transform(df).where("score is not null").count() == 28 * 18


def test_an_empty_name_omits_a_column(spark, make_model):
    model = make_model().setStdCol("").setRawPredictionCol("").setScoreCol("utility")
    assert model.transform(pairs(spark)).columns == [
        "at",
        "user",
        "item",
        "utility",
        "probability",
        "prediction",
    ]


def test_existing_output_columns_are_refused(spark, make_model):
    with pytest.raises(RequestError, match="'score' is already there"):
        make_model().transform(pairs(spark).withColumn("Score", F.lit(1)))
    with pytest.raises(RequestError, match="'std' is already there"):
        make_model().setScoreCol("std").transform(pairs(spark))


# Each majority and each negative; the other codings are slow.
@pytest.mark.parametrize(
    ("coding", "negative", "majority"),
    [
        ("signed", -1.0, 1),
        ("threshold", 0.0, -1),
        pytest.param("binary", 0.0, 1, marks=SLOW),
        pytest.param("boolean", 0.0, -1, marks=SLOW),
    ],
)
def test_predictions_come_in_the_incoming_coding(spark, make_model, coding, negative, majority):
    model = make_model(
        intercepts=False,
        implicit_features=False,
        info={"label_coding": coding, "majority": majority},
    )
    users, items = (np.append(index.ravel(), 99) for index in np.indices((28, 18)))
    table = model.transform(pairs(spark, users, items)).toArrow().to_pylist()
    for row in table:
        expected = (
            (1.0 if majority > 0 else negative)
            if row["score"] == 0
            else 1.0
            if row["score"] > 0
            else negative
        )
        assert row["prediction"] == expected
    assert any(row["score"] == 0 for row in table)  # an unknown id without intercepts
    assert {row["score"] > 0 for row in table if row["score"]} == {True, False}


def test_an_empty_frame(spark, make_model):
    predictions = make_model().transform(pairs(spark).where("user > 1000"))
    assert predictions.columns == ["at", "user", "item", *OUTPUTS]
    assert predictions.count() == 0
    assert predictions.collect() == []


# ---- ids ---------------------------------------------------------------------------------------

DAY = datetime.date(2020, 1, 1)
ID_KINDS = {
    "string": (pa.string(), lambda i: f"ü{i}"),
    "bigint": (pa.int64(), lambda i: i + 2**40),
    "date": (pa.date32(), lambda i: DAY + datetime.timedelta(days=int(i))),
    "double": (pa.float64(), lambda i: i / 4),
}


@pytest.mark.parametrize(
    "id_type", [pytest.param(k, marks=() if k in ("string", "date") else SLOW) for k in ID_KINDS]
)
def test_ids_of_many_types(spark, make_fit, make_model, id_type):
    arrow, name_of = ID_KINDS[id_type]
    ids = [pa.array([name_of(i) for i in range(n)], arrow) for n in (28, 18)]
    model = make_model(*ids, id_types={"user": id_type, "item": id_type})
    sides = {"user": USERS, "item": ITEMS}
    df = spark.createDataFrame(
        pa.table(
            {"at": np.arange(10)}
            | {side: pa.array([name_of(i) for i in at], arrow) for side, at in sides.items()}
        )
    )
    assert_same_as_fit(model.transform(df), make_fit())


# A wider and a narrower one than the model's; the others are slow.
@pytest.mark.parametrize(
    ("model_type", "input_type"),
    [
        ("int", "bigint"),
        ("bigint", "smallint"),
        pytest.param("int", "tinyint", marks=SLOW),
        pytest.param("bigint", "int", marks=SLOW),
    ],
)
def test_integral_widths_interchange(spark, make_fit, make_model, model_type, input_type):
    model = make_model(id_types={"user": model_type, "item": "bigint"})
    df = pairs(spark).withColumn("user", F.col("user").cast(input_type))
    predictions = model.transform(df)
    assert dict(predictions.dtypes)["user"] == input_type
    assert_same_as_fit(predictions, make_fit())


def test_an_id_beyond_the_models_width_is_unknown(spark, make_fit, make_model):
    model = make_model(id_types={"user": "int", "item": "int"})
    # Would be a known id after a silent cast
    df = pairs(spark).withColumn("user", F.col("user") + 2**32)
    assert_same_as_fit(model.transform(df), make_fit(), users=np.full(10, 99))


def test_other_types_are_refused(spark, make_model):
    for input_type in ("string", "double", "decimal(10,0)"):
        df = pairs(spark).withColumn("item", F.col("item").cast(input_type))
        with pytest.raises(
            RequestError,
            match=r"column 'item' is of type .* model's item ids are of type bigint: cast",
        ):
            make_model().transform(df)


def test_a_missing_or_doubled_column_is_named(spark, make_model):
    """``col("user")`` is a function of Spark's where there is no such column."""
    with pytest.raises(RequestError, match=r"no column 'user' \(columns: at, item\)"):
        make_model().transform(pairs(spark).drop("user"))
    with pytest.raises(RequestError, match="there are 2 columns named 'item'"):
        make_model().transform(pairs(spark).select("*", "item"))
    assert make_model().transform(pairs(spark).withColumnRenamed("user", "USER")).count() == 10


def test_null_ids_end_the_action(spark, make_model):
    model = make_model()
    df = pairs(spark).withColumn("item", F.when(F.col("at") > 2, F.col("item")))
    predictions = model.transform(df)
    for action in (predictions.collect, predictions.count, predictions.select("at").toArrow):
        with pytest.raises(
            SparkRuntimeException, match="column 'item' holds 3 null or NaN ids"
        ) as caught:
            action()
        assert caught.value.getCondition() == "USER_RAISED_EXCEPTION"


@SLOW
def test_nan_ids_too(spark, make_model):
    ids = pa.array(np.arange(28.0))
    model = make_model(ids, id_types={"user": "double", "item": "bigint"})
    df = pairs(spark).withColumn(
        "user", F.when(F.col("at") > 0, F.col("user").cast("double")).otherwise(float("nan"))
    )
    with pytest.raises(SparkRuntimeException, match="column 'user' holds 1 null or NaN ids"):
        model.transform(df).collect()


# ---- pyspark.ml's manners ----------------------------------------------------------------------


def test_params_copy_and_uid(spark, make_model):
    model = make_model(info={"columns": {"user": "who", "item": "what", "label": "said"}})
    assert (model.getUserCol(), model.getItemCol()) == ("who", "what")
    other = model.copy({model.scoreCol: "utility"})
    assert other.uid == model.uid
    assert (other.getScoreCol(), model.getScoreCol()) == ("utility", "score")
    df = pairs(spark).withColumnsRenamed({"user": "who", "item": "what"})
    assert "utility" in model.transform(df, {model.scoreCol: "utility"}).columns
    with pytest.raises(RequestError, match="coldStartStrategy must be one of"):
        other.setColdStartStrategy("guess").transform(df)
    assert "userCol: column of the user ids" in model.explainParams()


@pytest.mark.parametrize("choices", KINDS)
def test_factors(make_fit, make_model, choices):
    model = make_model(**choices)
    fit = make_fit(**choices)
    for frame, side in ((model.userFactors, fit.rows), (model.itemFactors, fit.cols)):
        assert frame.dtypes == [
            ("id", "bigint"),
            ("features", "array<float>"),
            ("spread", "array<float>"),
        ]
        table = frame.orderBy("id").toArrow()
        n = table.num_rows
        np.testing.assert_array_equal(np.stack(table["features"].to_numpy()), side.mean[:n])
        np.testing.assert_allclose(np.stack(table["spread"].to_numpy()), side.spread[:n], rtol=1e-6)


def test_summary(make_fit, make_model):
    model = make_model()
    fit = make_fit()
    assert model.summary.objectiveHistory == fit.objective_history
    assert (model.summary.totalIterations, model.summary.converged) == (5, False)
    assert (model.rank, model.effectiveRank) == (3, fit.effective_rank)


def test_pipelines_and_stock_evaluators(spark, make_model, tmp_path):
    model = make_model().setColdStartStrategy("drop")
    pipeline = PipelineModel([model])
    pipeline.write().overwrite().save(str(tmp_path / "pipeline"))
    df = pairs(spark).withColumn("label", (F.col("at") % 2).cast("double"))
    expected = BinaryClassificationEvaluator().evaluate(model.transform(df))
    loaded = PipelineModel.load(str(tmp_path / "pipeline"))
    assert loaded.stages[0].getColdStartStrategy() == "drop"
    assert BinaryClassificationEvaluator().evaluate(loaded.transform(df)) == expected


def test_large_tables_travel_in_small_batches(spark, make_model, monkeypatch):
    monkeypatch.setattr("onebit_spark.engines.spark.engine.BATCH_BYTES", 200)
    assert make_model().users.count() == 28
