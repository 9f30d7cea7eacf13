"""The supervisor process of a job."""
