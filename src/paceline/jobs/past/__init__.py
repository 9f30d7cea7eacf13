"""Jobs that have ended, as later jobs remember them: one database for all jobs of a user."""
