# cmake -Droot=<folder> -Dfiles=<list> -Dtrain=<out> -Dvalid=<out> -P collect_corpus.cmake
#
# Concatenates source files into two texts. Every tenth file goes to the validation text.
set(count 0)
file(WRITE "${train}" "")
file(WRITE "${valid}" "")
foreach(name IN LISTS files)
  file(READ "${root}/${name}" content)
  math(EXPR turn "${count} % 10")
  math(EXPR count "${count} + 1")
  if(turn EQUAL 5)
    file(APPEND "${valid}" "${content}")
  else()
    file(APPEND "${train}" "${content}")
  endif()
endforeach()
