"""The tables of the history, as the newest migration leaves them (`versions/`)."""

from paceline.base.optional import extra_for

with extra_for("the history of jobs"):
    import sqlalchemy as sql

METADATA = sql.MetaData()

JOBS = sql.Table(
    "jobs",
    METADATA,
    sql.Column("job_id", sql.String(128), primary_key=True),
    sql.Column("name", sql.String(64), nullable=False),
    sql.Column("backend", sql.String(32), nullable=False),
    sql.Column("end", sql.String(32), nullable=False),
    sql.Column("exit_code", sql.Integer, nullable=False),
    sql.Column("error", sql.Text, nullable=False),
    sql.Column("started_s", sql.Double, nullable=False),
    sql.Column("ended_s", sql.Double, nullable=False, index=True),
    # Features that people filter by have columns; all of them are in `features`.
    sql.Column("user", sql.String(128), index=True),
    sql.Column("script", sql.Text),
    sql.Column("strategy", sql.String(32)),
    sql.Column("mode", sql.String(16)),
    sql.Column("features", sql.JSON, nullable=False),
    sql.Column("first", sql.JSON, nullable=False),
    sql.Column("final", sql.JSON, nullable=False),
    sql.Column("samples", sql.BigInteger, nullable=False),
    sql.Column("samples_per_s", sql.Double, nullable=False),
    sql.Column("training_s", sql.Double, nullable=False),
    sql.Column("jct_s", sql.Double, nullable=False),
    sql.Column("relaunches", sql.Integer, nullable=False),
    sql.Column("restores", sql.Integer, nullable=False),
    sql.Column("out_of_memory", sql.Integer, nullable=False),
)
"""One row for each job; its end, once resumed and ended again, takes the place of the first."""

SIZES = sql.Table(
    "sizes",
    METADATA,
    sql.Column("job_id", sql.String(128), sql.ForeignKey("jobs.job_id"), primary_key=True),
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("since_launch_s", sql.Double, nullable=False),
    sql.Column("size", sql.JSON, nullable=False),
    sql.Column("reason", sql.Text, nullable=False),
)
"""The changes of a job's size, in order."""

RESTARTS = sql.Table(
    "restarts",
    METADATA,
    sql.Column("job_id", sql.String(128), sql.ForeignKey("jobs.job_id"), primary_key=True),
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("outcome", sql.JSON, nullable=False),
)
"""Table of the outcomes of each KILL_RESTART of a job, in order."""
