"""`python -m truedraft` is the `truedraft` command."""

from truedraft.cli.main import main

if __name__ == "__main__":
    main()
