# What one does with this repository; each target runs a plain command, which can be typed as well.

CARGO ?= cargo
PREFIX ?= /usr/local
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
BINARY := target/stripped/cvmio
# What `cvmio attest`, `cvmio bench` and `cvmio demo`, `cvmio host`, `cvmio run`, `cvmio owner` and `cvmio scm` start.
OTHERS = cvmio-attest cvmio-bench cvmio-host cvmio-job cvmio-owner cvmio-scm
# What `cvmio scm` has a VMM preload.
LIBRARIES = libcvmio_scm.so

.PHONY: build static demo check test kill-test bench install deb clean packages test-packages

# What an operator installs, in target/stripped. The same programs with what a debugger needs are in target/release.
build: packages
	$(CARGO) build --release
	for program in cvmio $(OTHERS) $(LIBRARIES); do install -D -s target/release/$$program target/stripped/$$program || exit; done

# The same as one file that needs no library of the machine where it runs: target/static/cvmio. Only the last step of the build differs.
PROFILE ?= release
static: packages
	$(CARGO) rustc --profile $(PROFILE) -p cvmio --bin cvmio --target-dir target -- -C target-feature=+crt-static
	install -D -s target/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/cvmio target/static/cvmio

# Puts a volume to work, then attacks it in every way that its host could. Leaves nothing behind. ANCHOR=etcd, tpm or owner starts the real
# thing, and rolls back all that the host holds.
demo: build
	$(SUDO) env HOME="$$HOME" ./$(BINARY) demo $(if $(ANCHOR),--anchor $(ANCHOR))

# What to run before each commit, with the tests of one crate.
CRATE ?= volume
check: packages
	./scripts/check $(CRATE)

# Every check; the last line counts them.
test: test-packages
	./scripts/test

# Kills the daemon under load so many times, and looks whether anything that it had acknowledged was lost. `make test` does 32 rounds.
ROUNDS ?= 300
kill-test: test-packages
	$(SUDO) env HOME="$$HOME" PATH="$$PATH" KILL_ROUNDS=$(ROUNDS) $(CARGO) test -p cvmio --test kill -- --nocapture

# What protection costs on the disk under DIR, and in memory.
DIR ?= .
bench: build
	./$(BINARY) bench volume --medium file --dir $(DIR)
	./$(BINARY) bench volume --medium memory

# The program, its manual pages and completions, and what systemd and initramfs-tools need for /etc/cvmiotab. initramfs-tools looks in two
# places only: that of packages, and /etc for all others.
AS_ROOT = $(if $(DESTDIR),,$(SUDO))
ROOT = $(DESTDIR)$(PREFIX)
INITRAMFS_TOOLS = $(if $(filter /usr,$(PREFIX)),/usr/share,/etc)/initramfs-tools
install: build
	scripts/share $(BINARY)
	sed 's|/usr/bin/cvmio |$(PREFIX)/bin/cvmio |' packaging/systemd/cvmio@.service > target/share/systemd/cvmio@.service
	sed 's|=/usr/bin/|=$(PREFIX)/bin/|; s|=/usr/share/|=$(PREFIX)/share/|' packaging/initramfs-tools/hook > target/share/initramfs-hook
	$(AS_ROOT) install -D -m 755 $(BINARY) $(ROOT)/bin/cvmio
	for program in $(OTHERS); do $(AS_ROOT) install -D -m 755 $(dir $(BINARY))$$program $(ROOT)/bin/$$program || exit; done
	for library in $(LIBRARIES); do $(AS_ROOT) install -D -m 644 $(dir $(BINARY))$$library $(ROOT)/lib/cvmio/$$library || exit; done
	$(AS_ROOT) install -D -m 644 -t $(ROOT)/share/man/man1 target/share/man/*.1
	$(AS_ROOT) install -D -m 644 target/share/completions/bash $(ROOT)/share/bash-completion/completions/cvmio
	$(AS_ROOT) install -D -m 644 target/share/completions/zsh $(ROOT)/share/zsh/site-functions/_cvmio
	$(AS_ROOT) install -D -m 644 target/share/completions/fish $(ROOT)/share/fish/vendor_completions.d/cvmio.fish
	for service in cvmio-owner cvmio-host; do \
	    sed 's|=/usr/bin/|=$(PREFIX)/bin/|' packaging/systemd/$$service.service > target/share/systemd/$$service.service || exit; \
	    $(AS_ROOT) install -D -m 644 -t $(ROOT)/lib/systemd/system target/share/systemd/$$service.service || exit; \
	done
	$(AS_ROOT) install -D -m 644 -t $(ROOT)/lib/systemd/system target/share/systemd/cvmio@.service
	$(AS_ROOT) install -d $(ROOT)/lib/systemd/system-generators
	$(AS_ROOT) cp -d target/share/systemd/cvmio-generator $(ROOT)/lib/systemd/system-generators/
	$(AS_ROOT) install -D -m 755 packaging/initramfs-tools/shutdown $(ROOT)/share/cvmio/shutdown
	$(AS_ROOT) install -D -m 755 target/share/initramfs-hook $(DESTDIR)$(INITRAMFS_TOOLS)/hooks/cvmio
	for moment in local-top local-block; do \
	    $(AS_ROOT) install -D -m 755 packaging/initramfs-tools/boot $(DESTDIR)$(INITRAMFS_TOOLS)/scripts/$$moment/cvmio || exit; \
	done

# Debian packages of the same, in target/debian: cvmio, and one for each program that it starts. Needs cargo-deb.
deb: packages
	scripts/deb

clean:
	$(CARGO) clean

# Installs what the build needs and this machine lacks (see scripts/packages), once.
packages:
	@./scripts/install-packages

# The same, and what the tests work with.
test-packages:
	@./scripts/install-packages packages packages-test
