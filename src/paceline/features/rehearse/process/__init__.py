"""The rehearsal within a process of the script: notes, a shorter job, a fault at its moment.

In a job `in_job.add` is called before the script runs; ``python -m ....process.alone`` runs a
script without a job. Nothing here is imported by a process that is not rehearsed.
"""
