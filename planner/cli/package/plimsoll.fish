# Completion of plimsoll for fish: commands and options from the program's own --help.
function __plimsoll_commands
    plimsoll --help 2>/dev/null | sed -n '/^Subcommands:/,$ s/^  \([a-z][a-z]*\)  *\(.*\)/\1\t\2/p'
end
function __plimsoll_options
    set -l words (commandline -opc)
    plimsoll $words[2] --help 2>/dev/null | grep -oE -- '--[a-z][a-z-]*' | sort -u
end
complete -c plimsoll -n 'test (count (commandline -opc)) -eq 1' -f -a '(__plimsoll_commands)'
complete -c plimsoll -n 'test (count (commandline -opc)) -gt 1' -a '(__plimsoll_options)'
