// A standalone node that lives as long as the process that starts it.
#ifndef DAYFLY_PRIVATE_NODE_HPP
#define DAYFLY_PRIVATE_NODE_HPP

#include "client.hpp"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace dayfly {
namespace detail {

// Path of the program `dayfly`: DAYFLY_BIN, else beside libdayfly, else on the PATH.
inline std::string find_program() {
    const char *named = std::getenv("DAYFLY_BIN");
    if (named != nullptr && *named != '\0') {
        return named;
    }
    Dl_info info;
    if (dladdr(reinterpret_cast<void *>(&dfly_last_error), &info) != 0 && info.dli_fname != nullptr) {
        const std::string library = info.dli_fname;
        const std::size_t end = library.rfind('/');
        const std::string beside = end == std::string::npos ? "./dayfly" : library.substr(0, end) + "/dayfly";
        if (access(beside.c_str(), X_OK) == 0) {
            return beside;
        }
    }
    return "dayfly";
}

// A stand-alone node of this process. It ends when this object or the process does, and removes its directory.
class private_node {
public:
    // Starts the node. Other hosts reach it by `host`, unless that is empty.
    explicit private_node(const std::string &host) {
        const char *root = std::getenv("TMPDIR");
        directory_ = std::string(root != nullptr && *root != '\0' ? root : "/tmp") + "/dayfly-job-XXXXXX";
        if (mkdtemp(&directory_[0]) == nullptr) {
            throw error(DFLY_STORE_FAILED, "no directory for a private node can be made below " + directory_);
        }
        std::vector<std::string> words = {find_program(), "node", "--standalone", "--ephemeral", "--state-dir",
                                          directory_,     "--sandbox", "process", "--log", "error",
                                          "--parent",     std::to_string(getpid())};
        if (!host.empty()) {
            words.insert(words.end(), {"--listen-tcp", "0.0.0.0:0", "--host-name", host});
        }
        spawn(words);
    }
    private_node(const private_node &) = delete;
    private_node &operator=(const private_node &) = delete;
    ~private_node() {
        kill(pid_, SIGTERM);
        for (int turn = 0; turn < 1000 && !has_ended(); turn++) {
            usleep(10000);
        }
        if (!has_ended()) {
            kill(pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
        }
    }

    // Returns the node's allowance, or "" if it does not serve yet.
    std::string allowance() const {
        std::ifstream file(directory_ + "/allowance.json");
        return file ? std::string(std::istreambuf_iterator<char>(file), {}) : std::string();
    }
    bool has_ended() {
        if (!ended_) {
            ended_ = waitpid(pid_, nullptr, WNOHANG) != 0;
        }
        return ended_;
    }

private:
    void spawn(const std::vector<std::string> &words) {
        std::vector<char *> arguments, variables;
        for (const std::string &word : words) {
            arguments.push_back(const_cast<char *>(word.c_str()));
        }
        arguments.push_back(nullptr);
        for (char **variable = environ; *variable != nullptr; variable++) {
            if (std::strncmp(*variable, "DAYFLY_MANAGER=", 15) != 0) {
                variables.push_back(*variable);
            }
        }
        variables.push_back(nullptr);
        posix_spawn_file_actions_t files;
        posix_spawnattr_t attributes;
        posix_spawn_file_actions_init(&files);
        posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
        posix_spawnattr_init(&attributes);
        // MPI launchers kill the group of a rank at once; the node ends its workers by itself.
        posix_spawnattr_setpgroup(&attributes, 0);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
        const int failure = posix_spawnp(&pid_, arguments[0], &files, &attributes, arguments.data(), variables.data());
        posix_spawn_file_actions_destroy(&files);
        posix_spawnattr_destroy(&attributes);
        if (failure != 0) {
            rmdir(directory_.c_str());
            throw error(DFLY_EXECUTOR_FAILED, words[0] + " cannot be started: " + std::strerror(failure) +
                                                  ". Set DAYFLY_BIN to its path");
        }
    }

    std::string directory_;
    pid_t pid_ = -1;
    bool ended_ = false;
};

// A client of the node that an allowance describes.
inline client client_of(const std::string &allowance) {
    const char *root = std::getenv("TMPDIR");
    std::string path = std::string(root != nullptr && *root != '\0' ? root : "/tmp") + "/dayfly-allowance-XXXXXX";
    const int file = mkstemp(&path[0]); // readable for this user only
    if (file < 0 || write(file, allowance.data(), allowance.size()) != static_cast<ssize_t>(allowance.size())) {
        if (file >= 0) {
            ::close(file);
            unlink(path.c_str());
        }
        throw error(DFLY_STORE_FAILED, "an allowance cannot be written to " + path);
    }
    ::close(file);
    try {
        client found = client::node(path);
        unlink(path.c_str());
        return found;
    } catch (...) {
        unlink(path.c_str());
        throw;
    }
}

} // namespace detail

} // namespace dayfly

#endif
