# Completion of plimsoll, plimsoll-run and plimsoll-calibrate for fish: commands and options from the program's own --help.
# "plimsoll run" is plimsoll-run.
function __plimsoll_words
    set -l words (commandline -opc)
    if test "$words[1]" = plimsoll; and contains -- "$words[2]" run calibrate
        set words plimsoll-$words[2] $words[3..-1]
    end
    printf '%s\n' $words
end
function __plimsoll_wants_command
    set -l words (__plimsoll_words)
    test (count $words) -eq 1; and test "$words[1]" != plimsoll-run
end
function __plimsoll_commands
    set -l words (__plimsoll_words)
    $words[1] --help 2>/dev/null | sed -n '/^Subcommands:/,$ s/^  \([a-z][a-z]*\)  *\(.*\)/\1\t\2/p'
end
function __plimsoll_options
    set -l words (__plimsoll_words)
    test "$words[1]" = plimsoll-run; and set words $words[1]
    $words[1..2] --help 2>/dev/null | grep -oE -- '--[a-z][a-z0-9-]*' | sort -u
end
for program in plimsoll plimsoll-run plimsoll-calibrate
    complete -c $program -n __plimsoll_wants_command -f -a '(__plimsoll_commands)'
    complete -c $program -n 'not __plimsoll_wants_command' -a '(__plimsoll_options)'
end
