#pragma once

/// Numbers in text, which make_unicode_tables.py explains.
namespace sash::text::tables {

extern const char* const kCategories;
extern const char* const kCombiningClasses;
extern const char* const kLowerCase;
extern const char* const kCaseFolds;
extern const char* const kDecompositions;

}  // namespace sash::text::tables
