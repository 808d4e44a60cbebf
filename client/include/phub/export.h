// PHUB_API marks what libphub.so exports; everything else in the library is hidden.
#pragma once

#if defined(__GNUC__)
#define PHUB_API __attribute__((visibility("default")))
#else
#define PHUB_API
#endif
