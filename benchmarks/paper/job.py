"""jobs/reproduce.py: runs an experiment of the paper as Spark tasks, and writes its results and a
page.

OUTPUT/REPRODUCTION.md      written again after every experiment, from all results in the folder
OUTPUT/tables.csv …         one line per draw; tables.json says how they were made
OUTPUT/noise.png
OUTPUT/tasks/tables/ …      results of finished tasks, one JSON file each: a killed run continues from them
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onebit_spark.cli.running import DONE, REFUSED, Job
from onebit_spark.data.locations import Location, OutputKind
from onebit_spark.engines.spark.sessions import broadcast, parallelism
from paper.requests import MovieLensRequest, ReproduceRequest, SimulationRequest, data_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from onebit_spark.cli.spark_runtime import SparkRuntime
    from paper.experiments import Experiment, Record

PAGE = "REPRODUCTION.md"
USAGE = (
    "usage: {name} {{tables,noise,movielens}} --output DIR [flags]; {name} tables --help "
    "lists the flags"
)
HERE = Path(__file__).parent
REPRODUCTION = OutputKind("a folder of experiments")


def reproduce(
    argv: Sequence[str] | None = None, *, ship_package: bool = False, name: str = "reproduce.py"
) -> int:
    experiment, *flags = (sys.argv[1:] if argv is None else argv) or [""]
    if experiment in ("-h", "--help"):
        print(USAGE.format(name=name))
        return DONE
    jobs: dict[str, tuple[type[ReproduceRequest], Callable[[Any, Any], None]]] = {
        "movielens": (MovieLensRequest, run_movielens),
        "tables": (SimulationRequest, run_tables),
        "noise": (SimulationRequest, run_noise),
    }
    if experiment in jobs:
        here = (HERE,) if HERE.is_dir() else ()  # in a zip, the workers have it already
        flags_of_job, work = jobs[experiment]
        job = Job("reproduce.py", flags_of_job, lambda: work, needs_classic=True, packages=here)
        return job(flags, ship_package=ship_package, name=f"{name} {experiment}")
    usage = USAGE.format(name=name)
    print(
        f"error: name the experiment first, tables, noise or movielens, not {experiment!r}; "
        f"{usage}",
        file=sys.stderr,
    )
    return REFUSED


def run_tables(runtime: SparkRuntime, request: SimulationRequest) -> None:
    from paper import experiments as paper

    experiment = paper.tables(request.replicates, request.size, request.seed)
    _run(runtime.session, request, experiment, paper.simulation_task, {})


def run_noise(runtime: SparkRuntime, request: SimulationRequest) -> None:
    from paper import experiments as paper

    experiment = paper.noise(request.replicates, request.size, request.seed)
    _run(runtime.session, request, experiment, paper.simulation_task, {})


def run_movielens(runtime: SparkRuntime, request: MovieLensRequest) -> None:
    from paper import experiments as paper
    from paper.movielens import download_movielens, read_movielens

    path = request.movielens or download_movielens(data_folder(), request.url)
    sample = read_movielens(path)
    experiment = paper.movielens(sample, request.replicates, request.seed)
    data = broadcast(runtime.session, sample)

    def work(task: Record) -> Record:
        return paper.movielens_task(task, data.value)

    try:
        _run(
            runtime.session,
            request,
            experiment,
            work,
            {"n_ratings": len(sample), "n_test": paper.test_size(sample)},
        )
    finally:
        data.destroy()


def _run(
    spark: SparkSession,
    request: ReproduceRequest,
    experiment: Experiment,
    work: Callable[[Record], Record],
    facts: Record,
) -> None:
    from onebit_spark.cli.fit_job import refuse_output
    from onebit_spark.cli.progress import TaskProgress
    from paper.provenance import provenance
    from paper.tasks import on_workers, run_tasks

    # A killed run continues
    folder = refuse_output(spark, "--output", request.output, REPRODUCTION, overwrite=True)
    REPRODUCTION.write_marker(folder)
    tasks = folder / "tasks" / experiment.name
    if request.overwrite and tasks.exists():
        tasks.delete()
    began = time.perf_counter()
    by_spark = on_workers(spark, work)
    slots = parallelism(spark)
    results: list[Record] = []

    def run_all(batch: Sequence[Record]) -> list[Record]:
        done = run_tasks(batch, by_spark, tasks, progress.advance, slots)
        results.extend(done)
        return done

    with TaskProgress(experiment.n_tasks, experiment.name, quiet=request.quiet) as progress:
        records = experiment.run(run_all)
    resumed = progress.worked < experiment.n_tasks
    meta = {
        **provenance(),
        **facts,
        "draws": len(experiment.seeds),
        "seeds": f"{experiment.seeds[0]} to {experiment.seeds[-1]}",
        "tuning_seeds": ", ".join(map(str, experiment.tuning_seeds)),
        "fits": experiment.n_tasks,
        "task_seconds": sum(result["seconds"] for result in results),
        "slots": slots,
        "wall_seconds": None if resumed else time.perf_counter() - began,
    }
    _write(folder, experiment.name, records, meta)
    if not request.quiet:
        print(f"{experiment.n_tasks:,} tasks, {time.perf_counter() - began:.0f} s in this run.")
    print(f"{'' if request.quiet else 'page: '}{request.output}/{PAGE}", flush=True)


def _write(folder: Location, name: str, records: list[Record], meta: Record) -> None:
    """Write the files of the experiment, and the page again."""
    import pandas as pd

    from paper import figures
    from paper import reproduction_page as page

    table = pd.DataFrame(records).drop(columns="do")
    table["setting"] = table["setting"].map(json.dumps)
    (folder / f"{name}.csv").write_text(table.to_csv(index=False))
    (folder / f"{name}.json").write_text(json.dumps(meta, indent=2) + "\n")
    if name == "noise":
        (folder / "noise.png").write_bytes(figures.noise(table))
    makers = {
        "tables": page.tables_section,
        "noise": page.noise_section,
        "movielens": page.movielens_section,
    }
    sections = []
    for part, make in makers.items():
        if (folder / f"{part}.json").exists():
            lines, told = ((folder / f"{part}.{kind}").read_text() for kind in ("csv", "json"))
            sections.append(make(pd.read_csv(io.StringIO(lines)), json.loads(told)))
    (folder / PAGE).write_text(page.page(sections))
