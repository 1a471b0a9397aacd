// Document -> a directory of CSV files, one a section, for spreadsheets and data frames.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "data/table.h"

namespace orrery {

// RFC 4180: a header of column keys, CRLF line ends, quotes where needed. Missing, NaN and infinite values are empty; a
// list is its numbers separated by spaces. Columns that only people see are left out.
// Pairs are two columns: of section "interval" KEY_from and KEY_to, of a key A_and_B A and B.
std::string to_csv(const Table& table, const std::string& section = {});

// The names of the files that write_csv() makes, in their order; the last is that of the notes.
std::vector<std::string> csv_files(const Document& document);

// Makes the directory and tries to write into it. Leaves nothing else behind.
Status check_csv_directory(const std::string& directory);

// Writes DIR/SECTION.csv for every section (none of one without columns; one without a key is named after the command;
// of a path (writers/json.h) its last part) and DIR/notes.csv. Makes the directory. All files are complete before the
// first appears under its name.
Status write_csv(const std::string& directory, const Document& document);

}  // namespace orrery
