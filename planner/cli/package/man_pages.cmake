# Which man pages does a program have?  Its own, as plimsoll-run.1, and a page a command, as plimsoll-ledger.1, made of the
# program's own --help, so that none of them can be out of date.  Run while building:
#   cmake -DPROGRAM=... -DOUT=... -DVERSION=... -DSEE_ALSO=page,page -P man_pages.cmake
function(help_of result)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env NO_COLOR=1 COLUMNS=80 ${PROGRAM} ${ARGN} --help
                  OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE ";" "@semicolon@" text "${text}")  # which would end an item of a list
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

# roff: a backslash is \e, and a line must not begin with a dot or a quote.
function(write_page name summary help see_also)
  string(REPLACE "\\" "\\e" help "${help}")
  string(REGEX REPLACE "(^|\n)([.'])" "\\1\\\\&\\2" help "${help}")
  string(REPLACE "-" "\\-" help "${help}")
  string(REPLACE "@semicolon@" ";" help "${help}")
  string(REPLACE "@semicolon@" ";" summary "${summary}")
  string(TOUPPER ${name} title)
  file(WRITE ${OUT}/${name}.1
       ".TH ${title} 1 \"\" \"plimsoll ${VERSION}\" \"User Commands\"\n.SH NAME\n${name} \\- ${summary}\n"
       ".SH DESCRIPTION\n.nf\n${help}.fi\n.SH SEE ALSO\n${see_also}\n")
endfunction()

# Each page's name with its section, as a line of SEE ALSO.
function(references result)
  list(TRANSFORM ARGN REPLACE "(.+)" ".BR \\1 (1)")
  list(JOIN ARGN ",\n" lines)
  set(${result} "${lines}" PARENT_SCOPE)
endfunction()

get_filename_component(name ${PROGRAM} NAME_WE)
help_of(all)
set(pages "")
if(all MATCHES "Subcommands:\n((  [a-z][^\n]*\n)+)")
  string(REGEX MATCHALL "  [a-z]+ +[^\n]+" lines "${CMAKE_MATCH_1}")
  foreach(line ${lines})
    string(REGEX MATCH "^  ([a-z]+) +(.*)$" part "${line}")
    set(command ${CMAKE_MATCH_1})
    set(summary "${CMAKE_MATCH_2}")
    help_of(help ${command})
    references(see_also ${name})
    write_page(${name}-${command} "${summary}" "${help}" "${see_also}")
    list(APPEND pages ${name}-${command})
  endforeach()
endif()
string(REPLACE "," ";" others "${SEE_ALSO}")
references(see_also ${pages} ${others})
string(REGEX MATCH "^[^\n]*[^\n.]" summary "${all}")
write_page(${name} "${summary}" "${all}" "${see_also}")
