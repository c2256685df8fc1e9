// LADING_API marks what liblading.so shows to programs that link it; everything else is hidden.
#pragma once

#define LADING_API __attribute__((visibility("default")))
