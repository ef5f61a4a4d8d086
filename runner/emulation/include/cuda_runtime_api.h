// CUDA's name for the C half of the runtime; here both are one header.
#pragma once

#include "cuda_runtime.h"
