#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvpush {

// Length of the UTF-8 sequence at the front of `text` (not empty), or 0 when it is none.
std::size_t utf8_length(std::string_view text);

// The text with a replacement character for each byte that belongs to no UTF-8 sequence.
std::string to_utf8(std::string_view text);

}  // namespace kvpush
