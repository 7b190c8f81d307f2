"""What each command does, a module for each subject. What they take is in :mod:`ledger.commands.arguments`."""
