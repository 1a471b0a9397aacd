// What must not be written down of a line that a job printed.
#pragma once
#include <string>
#include <string_view>

namespace orrery {

// A line in which what looks like a secret is ***:
//   NAME=VALUE, NAME: VALUE, "NAME": "VALUE" and --NAME VALUE, where NAME ends with pass, password, passwd, passphrase,
//     secret, token, credential, auth, authorization, api_key, access_key, private_key or secret_key, or has a part
//     that is password, passwd, passphrase, secret or credential (SECRET_ACCESS_KEY, password-file); VALUE goes to its
//     quote or the next blank. Not a number of tokens (num_tokens=4096), not the pass of "forward pass: 3 ms"
//   what follows Bearer and Basic; names in a URL, and the values of its query
//   what begins as known tokens do (hf_, ghp_, sk-, AKIA, ...); 40 characters and more at random
std::string without_secrets(std::string_view line);

}  // namespace orrery
