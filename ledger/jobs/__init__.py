"""What runs when, beside answering requests. One process of a ledger leads and runs all of it."""
