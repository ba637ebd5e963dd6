from optbuilder.cli import main

main()
