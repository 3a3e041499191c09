# SPDX-License-Identifier: Apache-2.0
# Installation. `install` and `uninstall` work from the same list: FILES holds "mode source target" triples.
UNITDIR     ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
TMPFILESDIR ?= $(PREFIX)/lib/tmpfiles.d

# Units as they are, and those (.in) that must know where the programs are.
UNITS := $(addprefix $(BUILD)/systemd/,$(notdir $(wildcard systemd/*.socket) $(patsubst %.in,%,$(wildcard systemd/*.service.in))))

$(BUILD)/systemd/%: systemd/%
	@mkdir -p $(@D)
	$(Q)cp $< $@
$(BUILD)/systemd/%: systemd/%.in $(BUILD)/systemd/paths
	@mkdir -p $(@D)
	$(Q)sed -e 's|@SBINDIR@|$(SBINDIR)|g' $< > $@
# Units are remade when a path changes.
$(BUILD)/systemd/paths: FORCE
	@mkdir -p $(@D)
	@echo '$(SBINDIR)' | cmp -s - $@ || echo '$(SBINDIR)' > $@
.PHONY: units
units: $(UNITS)
products: units

INSTALLED := \
  755:$(BUILD)/gpumemd:$(SBINDIR)/gpumemd \
  755:$(BUILD)/gpumemd-keeper:$(SBINDIR)/gpumemd-keeper \
  755:$(BUILD)/gpumemctl:$(SBINDIR)/gpumemctl \
  755:$(BUILD)/gpumem-gen:$(BINDIR)/gpumem-gen \
  755:$(BUILD)/gpumem-bench:$(BINDIR)/gpumem-bench \
  755:$(BUILD)/libgpumem.so.$(VERSION):$(LIBDIR)/libgpumem.so.$(VERSION) \
  755:$(BUILD)/libcuda-sim.so:$(LIBDIR)/libcuda-sim.so \
  $(foreach p,$(wildcard libclient/simcuda/profiles/*.profile),644:$(p):$(PREFIX)/share/gpumem/profiles/$(notdir $(p))) \
  644:$(BUILD)/gpumem.pc:$(LIBDIR)/pkgconfig/gpumem.pc \
  644:systemd/gpumemd.conf:$(SYSCONFDIR)/gpumem/gpumemd.conf \
  $(foreach u,$(UNITS),644:$(u):$(UNITDIR)/$(notdir $(u))) \
  644:systemd/gpumem.sysusers.conf:$(SYSUSERSDIR)/gpumem.conf \
  644:systemd/gpumem.tmpfiles.conf:$(TMPFILESDIR)/gpumem.conf \
  $(foreach h,$(wildcard include/gpumem/*),644:$(h):$(PREFIX)/include/gpumem/$(notdir $(h))) \
  $(foreach m,$(MAN_PAGES),644:$(m):$(MANDIR)/man$(patsubst .%,%,$(suffix $(m)))/$(notdir $(m)))

install: build
	$(Q)set -e; for entry in $(INSTALLED); do \
	    mode=$${entry%%:*}; rest=$${entry#*:}; source=$${rest%%:*}; target='$(DESTDIR)'$${rest#*:}; \
	    case $$target in */gpumemd.conf) if [ -e "$$target" ]; then echo "  KEEP     $$target"; continue; fi ;; esac; \
	    echo "  INSTALL  $$target"; install -D -m $$mode $$source $$target; \
	done
	$(Q)ln -sf libgpumem.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libgpumem.so.$(SOVERSION)
	$(Q)ln -sf libgpumem.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/libgpumem.so
	$(Q)if [ -z '$(DESTDIR)' ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

# The configuration file is the administrator's once it is there: it stays.
uninstall:
	$(Q)for entry in $(INSTALLED); do target='$(DESTDIR)'$${entry##*:}; \
	    case $$target in */gpumemd.conf) echo "  KEEP     $$target" ;; *) rm -f "$$target" ;; esac; done
	$(Q)rm -f $(DESTDIR)$(LIBDIR)/libgpumem.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/libgpumem.so
