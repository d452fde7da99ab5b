"""Spark's event log, read while it is written: which phase a fit is in, and what befell its tasks.

Spark flushes the log when a job starts, when it ends and when an executor is lost; the rest is
there in the end.
"""

import json
from functools import cached_property

# Phases: how the package describes its jobs.
SURVEY = "survey"
BLOCKING = "blocking"
START = "start"
PART = "a part of the ratings"
ROWS_STEP = "iteration 3, rows"
COLUMNS_STEP = "iteration 4, cols"
CERTIFICATE = "certificate"
CHECKPOINT = "checkpoint of iteration 6"
WRITING = "writing"


def event_log_settings(folder):
    """One plain file in the folder, for one application."""
    settings = {
        "enabled": "true",
        "dir": folder.as_uri(),
        "compress": "false",
        "rolling.enabled": "false",
    }
    return {f"spark.eventLog.{name}": value for name, value in settings.items()}


class EventLog:
    """The log of the one application that writes into the folder."""

    def __init__(self, folder):
        self._folder = folder
        self._unfinished = ""  # a line that is not yet whole
        self._events = []

    @cached_property
    def _stream(self):
        (path,) = self._folder.iterdir()
        return path.open(encoding="utf-8")

    def events(self, kind):
        """All events of a kind so far."""
        if any(self._folder.iterdir()):
            *lines, self._unfinished = (self._unfinished + self._stream.read()).split("\n")
            self._events += map(json.loads, lines)
        return [event for event in self._events if event["Event"].endswith(f"SparkListener{kind}")]

    def jobs(self, phase):
        """The numbers of the jobs of a phase, as far as they have started."""
        return [job["Job ID"] for job in self._jobs(phase)]

    def ended(self, job):
        return any(event["Job ID"] == job for event in self.events("JobEnd"))

    def stages(self, phase):
        return {stage for job in self._jobs(phase) for stage in job["Stage IDs"]}

    def tasks_of(self, phase):
        """The ends of all attempts of the phase's tasks."""
        stages = self.stages(phase)
        return [event for event in self.events("TaskEnd") if event["Stage ID"] in stages]

    def lost_tasks(self, phase):
        """The executors of the phase that died with a task in their hands."""
        ends = [event["Task End Reason"] for event in self.tasks_of(phase)]
        return [end["Executor ID"] for end in ends if end["Reason"] == "ExecutorLostFailure"]

    def lost_executors(self):
        """Executor ─► why it was removed."""
        return {
            event["Executor ID"]: event["Removed Reason"]
            for event in self.events("ExecutorRemoved")
        }

    def _jobs(self, phase):
        wanted = f"onebit_spark: {phase}"
        # No stages: an empty table was asked for
        jobs = [job for job in self.events("JobStart") if job["Stage IDs"]]
        return [job for job in jobs if job["Properties"].get("spark.job.description") == wanted]
