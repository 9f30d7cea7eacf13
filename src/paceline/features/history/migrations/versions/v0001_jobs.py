"""Jobs, the changes of their sizes, and what their restarts have achieved."""

import sqlalchemy as sql
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "jobs",
        sql.Column("job_id", sql.String(128), primary_key=True),
        sql.Column("name", sql.String(64), nullable=False),
        sql.Column("backend", sql.String(32), nullable=False),
        sql.Column("end", sql.String(32), nullable=False),
        sql.Column("exit_code", sql.Integer, nullable=False),
        sql.Column("error", sql.Text, nullable=False),
        sql.Column("started_s", sql.Double, nullable=False),
        sql.Column("ended_s", sql.Double, nullable=False),
        sql.Column("user", sql.String(128)),
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
    op.create_index("ix_jobs_ended_s", "jobs", ["ended_s"])
    op.create_index("ix_jobs_user", "jobs", ["user"])
    op.create_table(
        "sizes",
        sql.Column("job_id", sql.String(128), sql.ForeignKey("jobs.job_id"), primary_key=True),
        sql.Column("number", sql.Integer, primary_key=True),
        sql.Column("since_launch_s", sql.Double, nullable=False),
        sql.Column("size", sql.JSON, nullable=False),
        sql.Column("reason", sql.Text, nullable=False),
    )
    op.create_table(
        "restarts",
        sql.Column("job_id", sql.String(128), sql.ForeignKey("jobs.job_id"), primary_key=True),
        sql.Column("number", sql.Integer, primary_key=True),
        sql.Column("outcome", sql.JSON, nullable=False),
    )
