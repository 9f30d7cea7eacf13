"""Jobs in virtual time, over the ledger, monitor and solutions that real jobs use."""
