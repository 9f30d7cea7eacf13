"""Click logs with a known answer, and public data sets in the same layout."""
