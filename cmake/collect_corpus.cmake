# cmake -Droot=<folder> -Dfiles=<list> -Dtrain=<out> -Dvalid=<out> -P collect_corpus.cmake
#
# Joins source files into two texts; every tenth file is held out for validation.
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
