#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <utility>

#include "kvpush/base/instant.h"
#include "kvpush/protocol/action.h"
#include "tests/fuzz/choices.h"

namespace kvpush::testing {

// A machine of the protocol with all that is around it, which does what the choices say.
//
// Job: the order of things, and time: what the machine wants is carried out after each step and each deadline.
// Not here: what a step can be and what is around the machine: a subclass for each kind of machine.
// Thread: value type.
template <class Machine>
class MachineStage {
 public:
  virtual ~MachineStage() = default;

  void run() {
    while (!choices_.empty()) {
      step();
      settle();
    }
    end();
  }

 protected:
  MachineStage(std::span<const std::uint8_t> input, Machine machine) : choices_(input), machine_(std::move(machine)) {}

  // One thing that the machine may meet.
  virtual void step() = 0;
  virtual void perform(const Action& action) = 0;
  // Looks whether all is as it must be whenever the machine wants nothing more.
  virtual void look() = 0;
  // Everybody goes; looks whether nothing is left.
  virtual void end() = 0;

  void settle() {
    while (!out_.empty()) {
      for (const Action& action : std::exchange(out_, {})) perform(action);
    }
    look();
  }

  void pass(Duration duration) {
    const Instant until = now_ + duration;
    while (machine_.deadline() && *machine_.deadline() <= until) {
      now_ = std::max(now_, *machine_.deadline());
      machine_.tick(now_, out_);
      settle();
    }
    now_ = until;
  }

  Choices choices_;
  Instant now_{std::chrono::seconds(1000)};  // a machine that has run for a while
  Machine machine_;
  Actions out_;
};

}  // namespace kvpush::testing
