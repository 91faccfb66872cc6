// What backends share that open a vendor's library at run time.
#pragma once

#include <filesystem>
#include <vector>

namespace kvpush {

// The folder of the program or extension module that holds this code.
std::filesystem::path own_folder();

// Whether the process has loaded a library of this name ("libucp.so.0").
bool is_loaded(const char* library);

// While one exists, UCX that is loaded leaves the process alone: it patches neither the code of mmap and its kin, which
// only a cache of registrations needs, nor takes over fatal signals and SIGHUP; and where there is no RDMA hardware it
// does not load what drives it (in NIXL's wheel those libraries crash when a process ends). What the user has set is
// kept.
//
// Job: sets the variables that UCX reads when it is loaded and from nowhere else, and unsets them at its end.
// Thread: value type; other threads must not change the environment meanwhile.
class QuietUcxLoading {
 public:
  QuietUcxLoading();
  ~QuietUcxLoading();
  QuietUcxLoading(const QuietUcxLoading&) = delete;
  QuietUcxLoading& operator=(const QuietUcxLoading&) = delete;

 private:
  std::vector<const char*> set_here_;
};

}  // namespace kvpush
