// What the device keeps of a slot between steps.
#pragma once
#include "table.cuh"

namespace openjet {

struct SlotState {
    // Rows of the slot's last decode step that its recurrent state has still to take in: accepted + 1.
    uint32_t pending;
    // Which half of the doubled parts those rows are in.
    uint32_t parity;
};
static_assert(sizeof(SlotState) == 8);

}  // namespace openjet
