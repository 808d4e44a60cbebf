# cmake -DFILES=a;b -DOUT=x.cc -P embed.cmake: writes the files as constants, see site_files.h.
set(code "#include \"server/page/site_files.h\"\n\nnamespace phub::server {\n\n")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  string(MAKE_C_IDENTIFIER "${name}" name)
  file(READ ${file} text)
  string(APPEND code "const std::string_view kSite_${name} = R\"phub(${text})phub\";\n")
endforeach()
file(WRITE ${OUT} "${code}\n}  // namespace phub::server\n")
