import sys

try:
    from optbuilder.cli import main

    main()
except KeyboardInterrupt:  # while it still imports
    print("interrupted", file=sys.stderr)
    sys.exit(130)
