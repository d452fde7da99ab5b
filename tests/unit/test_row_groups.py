"""Row groups divided among tasks."""

from hypothesis import given
from hypothesis import strategies as st

from onebit_spark.input.spark_ratings import RowGroup, even_tasks


@given(st.lists(st.integers(0, 1_000), max_size=40), st.integers(1, 12))
def test_tasks_are_runs_of_about_equal_size(sizes, n_tasks):
    groups = [RowGroup("a", place, n) for place, n in enumerate(sizes)]
    tasks = even_tasks(groups, n_tasks)
    found = [group for task in tasks for group in task if group.n]
    assert found == [group for group in groups if group.n]
    assert len(tasks) <= n_tasks
    rows = [sum(group.n for group in task) for task in tasks]
    assert all(0 < n < sum(sizes) / n_tasks + max(sizes) for n in rows)


def test_as_many_tasks_as_asked_for():
    assert [len(task) for task in even_tasks([RowGroup("a", k, 5) for k in range(12)], 4)] == [3, 3, 3, 3]
