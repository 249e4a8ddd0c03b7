/* The header of the library that pkg-config found; without one, that of this repository. */
#if __has_include(<mlxgen.h>)
#include <mlxgen.h>
#else
#include "../../../../include/mlxgen.h"
#endif
