// mlx-c builds its error texts with std::format and nothing but plain "{}" fields. GCC before 13 has no
// <format>; this stands in for it there.
#pragma once
#include <version>
#ifdef __cpp_lib_format
#include <format>
#else
#include <sstream>
#include <string>
#include <string_view>

namespace std {
template <class... Fields>
string format(string_view text, const Fields&... fields) {
  ostringstream out;
  auto next = [&](const auto& field) {
    const auto brace = text.find("{}");
    out << text.substr(0, brace) << field;
    text.remove_prefix(brace + 2);
  };
  (next(fields), ...);
  out << text;
  return out.str();
}
} // namespace std
#endif
