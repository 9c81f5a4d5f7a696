# Which man pages does the program have?  plimsoll.1 and a page a command, made of the program's own --help, so that none of them
# can be out of date.  Run while building:  cmake -DPROGRAM=... -DOUT=... -DVERSION=... -P man_pages.cmake
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

help_of(all)
string(REGEX MATCH "Subcommands:\n(.*)\n\nAlso" part "${all}")
string(REGEX MATCHALL "  [a-z]+ +[^\n]+" lines "${CMAKE_MATCH_1}")
set(pages "")
foreach(line ${lines})
  string(REGEX MATCH "^  ([a-z]+) +(.*)$" part "${line}")
  set(command ${CMAKE_MATCH_1})
  set(summary "${CMAKE_MATCH_2}")
  help_of(help ${command})
  write_page(plimsoll-${command} "${summary}" "${help}" ".BR plimsoll (1)")
  list(APPEND pages ".BR plimsoll-${command} (1)")
endforeach()
list(JOIN pages ",\n" see_also)
write_page(plimsoll "memory and communication planning for ZeRO and Mixture-of-Experts training" "${all}"
           "${see_also},\n.BR plimsoll-gui (1)")
